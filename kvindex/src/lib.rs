//! A live, exact prefix index fed by KV events
