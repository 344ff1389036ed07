//! The core of one pool: admission, scheduler and endpoint table behind one pure step
