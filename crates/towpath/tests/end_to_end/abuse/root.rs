//! What a privileged command changes.
