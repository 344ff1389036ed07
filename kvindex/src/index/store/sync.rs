//! Locks and atomics, and loom's in their place when the core is model-checked.

#[cfg(not(feature = "loom"))]
mod real {
    use std::{
        hash::{BuildHasherDefault, Hasher},
        sync::Arc,
    };

    use papaya::{HashMap, HashMapRef, LocalGuard, ResizeMode};

    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use super::super::run::Run;

    pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Keys are hashes already.
    #[derive(Clone, Copy, Default)]
    pub(crate) struct Identity(u64);

    impl Hasher for Identity {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
            }
        }

        fn write_u64(&mut self, value: u64) {
            self.0 = value;
        }
    }

    type Hash = BuildHasherDefault<Identity>;

    /// The runs by their first key. Readers never wait; what is replaced lives on until they let go of their pin.
    pub(crate) struct Heads(HashMap<u64, Arc<Run>, Hash>);

    pub(crate) struct Pin<'a>(HashMapRef<'a, u64, Arc<Run>, Hash, LocalGuard<'a>>);

    impl Heads {
        pub(crate) fn new() -> Heads {
            // A resize that goes on over many insertions would make every lookup meanwhile look twice.
            let builder = HashMap::builder().hasher(Hash::default());
            Heads(builder.resize_mode(ResizeMode::Blocking).build())
        }

        pub(crate) fn pin(&self) -> Pin<'_> {
            Pin(self.0.pin())
        }
    }

    impl Pin<'_> {
        #[inline]
        pub(crate) fn get(&self, key: u64) -> Option<&Arc<Run>> {
            self.0.get(&key)
        }

        /// False if the key has a run already.
        pub(crate) fn add(&self, key: u64, run: Arc<Run>) -> bool {
            self.0.try_insert(key, run).is_ok()
        }

        pub(crate) fn replace(&self, key: u64, run: Arc<Run>) {
            self.0.insert(key, run);
        }

        pub(crate) fn remove(&self, key: u64) {
            self.0.remove(&key);
        }
    }
}

#[cfg(feature = "loom")]
mod model {
    use std::{collections::HashMap, sync::Arc};

    pub(crate) use loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    };

    use super::super::run::Run;

    #[expect(
        clippy::expect_used,
        reason = "a panic in another thread of the model is a failed check"
    )]
    pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no thread of the model panics")
    }

    pub(crate) struct Heads(Mutex<HashMap<u64, Arc<Run>>>);

    pub(crate) struct Pin<'a>(&'a Heads);

    impl Heads {
        pub(crate) fn new() -> Heads {
            Heads(Mutex::new(HashMap::new()))
        }

        pub(crate) fn pin(&self) -> Pin<'_> {
            Pin(self)
        }
    }

    impl Pin<'_> {
        pub(crate) fn get(&self, key: u64) -> Option<Arc<Run>> {
            locked(&self.0.0).get(&key).cloned()
        }

        pub(crate) fn add(&self, key: u64, run: Arc<Run>) -> bool {
            let mut heads = locked(&self.0.0);
            let absent = !heads.contains_key(&key);
            if absent {
                heads.insert(key, run);
            }
            absent
        }

        pub(crate) fn replace(&self, key: u64, run: Arc<Run>) {
            locked(&self.0.0).insert(key, run);
        }

        pub(crate) fn remove(&self, key: u64) {
            locked(&self.0.0).remove(&key);
        }
    }
}

#[cfg(feature = "loom")]
pub(crate) use model::*;
#[cfg(not(feature = "loom"))]
pub(crate) use real::*;
