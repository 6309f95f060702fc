//! Who a server and its clients are.
