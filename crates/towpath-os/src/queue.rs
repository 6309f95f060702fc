//! A queue between two threads whose receiving end can be polled like any descriptor.
//!
//! Its eventfd is signalled at most once until the receiver has seen the queue empty. So sending
//! costs no system call while both sides are busy.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use crate::sys;

/// Makes an unbounded queue, as sender and receiver.
pub fn queue<T>() -> io::Result<(QueueSender<T>, QueueReceiver<T>)> {
    let notifier = Arc::new(Notifier {
        event: sys::create_eventfd()?.into(),
        is_notified: AtomicBool::new(false),
    });
    let (sender, receiver) = mpsc::channel();
    Ok((
        QueueSender { items: sender, notifier: Arc::clone(&notifier) },
        QueueReceiver { items: receiver, notifier },
    ))
}

#[derive(Debug)]
struct Notifier {
    event: File,
    /// Set when the event is readable, or will be at once.
    is_notified: AtomicBool,
}

impl Notifier {
    fn notify(&self) {
        if !self.is_notified.swap(true, Ordering::AcqRel) {
            // A write fails only if the counter is at its limit, and then the event is readable as
            // well.
            let _ = (&self.event).write(&1_u64.to_ne_bytes());
        }
    }

    /// Clears the event so that a later sender makes it readable again.
    ///
    /// The receiver must check the queue once more after this, before it waits.
    fn clear(&self) {
        let _ = (&self.event).read(&mut [0; 8]); // fails if it was not signalled
        self.is_notified.store(false, Ordering::Release);
        // Pairs with the swap in `notify`: an item sent before a `notify` without effect is seen.
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Sending end; clones send into the same queue.
#[derive(Debug)]
pub struct QueueSender<T> {
    items: mpsc::Sender<T>,
    notifier: Arc<Notifier>,
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), notifier: Arc::clone(&self.notifier) }
    }
}

impl<T> QueueSender<T> {
    /// Sends an item; returns false when the receiver is gone.
    pub fn send(&self, item: T) -> bool {
        let sent = self.items.send(item).is_ok();
        if sent {
            self.notifier.notify();
        }
        sent
    }
}

/// Receiving end. Its descriptor is readable while an item may be queued.
#[derive(Debug)]
pub struct QueueReceiver<T> {
    items: mpsc::Receiver<T>,
    notifier: Arc<Notifier>,
}

impl<T> QueueReceiver<T> {
    /// Returns the next item; `None` if the queue is empty.
    pub fn receive(&self) -> Option<T> {
        if let Ok(item) = self.items.try_recv() {
            return Some(item);
        }
        if !self.notifier.is_notified.load(Ordering::Acquire) {
            return None;
        }
        self.notifier.clear();
        let item = self.items.try_recv().ok()?;
        // Items may have come before the event was cleared; the caller may stop receiving here.
        self.notifier.notify();
        Some(item)
    }
}

impl<T> AsFd for QueueReceiver<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_descriptor_is_readable_only_while_an_item_may_be_queued() {
        let (sender, receiver) = queue().unwrap();
        let readable = || sys::poll(&mut [sys::input_pollfd(&receiver)], Some(Duration::ZERO));
        assert_eq!(readable().unwrap(), 0);
        let second_sender = sender.clone();
        assert!(sender.send(1) && second_sender.send(2));
        assert_eq!(readable().unwrap(), 1);
        assert_eq!((receiver.receive(), receiver.receive()), (Some(1), Some(2)));
        assert_eq!(receiver.receive(), None);
        assert_eq!(readable().unwrap(), 0);
        drop(receiver);
        assert!(!sender.send(3) && !second_sender.send(4));
    }

    /// A receiver that waits for the descriptor after each item receives every item.
    #[test]
    fn no_wake_up_is_lost_between_two_threads() {
        const ITEMS: u32 = 100_000;
        let (sender, receiver) = queue().unwrap();
        let producer =
            thread::spawn(move || (0..ITEMS).for_each(|item| assert!(sender.send(item))));
        for expected in 0..ITEMS {
            loop {
                let mut fds = [sys::input_pollfd(&receiver)];
                let ready = sys::poll(&mut fds, Some(Duration::from_secs(10))).unwrap();
                assert_eq!(ready, 1, "item {expected} was not announced");
                if let Some(item) = receiver.receive() {
                    assert_eq!(item, expected);
                    break;
                }
            }
        }
        producer.join().unwrap();
    }
}
