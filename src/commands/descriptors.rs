//! Open files: callers must not take those that engines, scrapes and operators need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors beside callers' connections: endpoints, scrapes, listeners, logs. A caller that is served takes one more.
const OWN: u64 = 512;

/// Raises the limit on open files as far as we may, and says how many callers' connections it bears at most.
pub(super) fn bound(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let soft = match (limit.current, limit.maximum) {
        (None, _) => return wanted,
        (Some(soft), Some(hard)) if soft >= hard => soft,
        (Some(soft), hard) => {
            let raised = Rlimit {
                current: hard,
                maximum: hard,
            };
            match setrlimit(Resource::Nofile, raised) {
                Ok(()) => match hard {
                    None => return wanted,
                    Some(hard) => hard,
                },
                Err(error) => {
                    tracing::debug!(%error, "the limit on open files cannot be raised");
                    soft
                }
            }
        }
    };
    let most = usize::try_from(callers(soft)).unwrap_or(usize::MAX);
    if most < wanted {
        tracing::info!(
            "at most {soft} open files (`ulimit -n`): `server.maxConnections` is {most}, not {wanted}"
        );
    }
    wanted.min(most)
}

/// Each caller needs a descriptor, and one at an engine while it is served.
fn callers(limit: u64) -> u64 {
    (limit.saturating_sub(OWN.min(limit / 2)) / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_leave_something_to_the_rest() {
        assert_eq!(callers(0), 1);
        assert_eq!(callers(256), 64);
        assert_eq!(callers(1024), 256);
        assert_eq!(callers(65_536), 32_512);
    }
}
