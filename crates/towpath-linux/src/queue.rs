//! A queue between two threads whose receiving end can be polled like any descriptor.
//!
//! The bell is an eventfd that rings at most once until the receiver has seen the queue empty: while
//! both sides are busy, sending costs no system call.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use crate::sys;

/// A queue without limit, as sender and receiver.
pub(crate) fn queue<T>() -> io::Result<(QueueSender<T>, QueueReceiver<T>)> {
    let bell = Arc::new(Notifier { event: sys::event()?.into(), rung: AtomicBool::new(false) });
    let (sender, receiver) = mpsc::channel();
    Ok((
        QueueSender { items: sender, bell: Arc::clone(&bell) },
        QueueReceiver { items: receiver, bell },
    ))
}

#[derive(Debug)]
struct Notifier {
    event: File,
    /// The event is readable, or is about to be.
    rung: AtomicBool,
}

impl Notifier {
    fn notify(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // A counter at its limit is readable, too.
            let _ = (&self.event).write(&1_u64.to_ne_bytes());
        }
    }

    /// Silences the bell. Only after this may the queue be looked at for the last time before
    /// waiting: the event first, so that who rings from now on makes it readable again.
    fn clear(&self) {
        let _ = (&self.event).read(&mut [0; 8]); // fails if it was not signalled
        self.rung.store(false, Ordering::Release);
        // Pairs with the swap in `ring`: what was sent before a ring that did nothing is seen.
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// The end that sends; clones send into the same queue.
#[derive(Debug)]
pub(crate) struct QueueSender<T> {
    items: mpsc::Sender<T>,
    bell: Arc<Notifier>,
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> QueueSender<T> {
    /// Sends; `false` when nobody receives any more.
    pub(crate) fn send(&self, item: T) -> bool {
        let sent = self.items.send(item).is_ok();
        if sent {
            self.bell.notify();
        }
        sent
    }
}

/// The end that receives. Its descriptor is readable while something may wait.
#[derive(Debug)]
pub(crate) struct QueueReceiver<T> {
    items: mpsc::Receiver<T>,
    bell: Arc<Notifier>,
}

impl<T> QueueReceiver<T> {
    /// The next item, if one waits.
    pub(crate) fn receive(&self) -> Option<T> {
        if let Ok(item) = self.items.try_recv() {
            return Some(item);
        }
        if !self.bell.rung.load(Ordering::Acquire) {
            return None;
        }
        self.bell.clear();
        let item = self.items.try_recv().ok()?;
        // More may have come before the bell was silent; the caller may stop asking here.
        self.bell.notify();
        Some(item)
    }
}

impl<T> AsFd for QueueReceiver<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_descriptor_is_readable_only_while_something_may_wait() {
        let (sender, receiver) = queue().unwrap();
        let readable = || sys::poll(&mut [sys::wait_for_input(&receiver)], Some(Duration::ZERO));
        assert_eq!(readable().unwrap(), 0);
        let other = sender.clone();
        assert!(sender.send(1) && other.send(2));
        assert_eq!(readable().unwrap(), 1);
        assert_eq!((receiver.receive(), receiver.receive()), (Some(1), Some(2)));
        assert_eq!(receiver.receive(), None);
        assert_eq!(readable().unwrap(), 0);
        drop(receiver);
        assert!(!sender.send(3) && !other.send(4));
    }

    /// A receiver that stops after each item and waits for the descriptor hears of every one.
    #[test]
    fn no_wake_up_is_lost_between_two_threads() {
        const ITEMS: u32 = 100_000;
        let (sender, receiver) = queue().unwrap();
        let producer =
            thread::spawn(move || (0..ITEMS).for_each(|item| assert!(sender.send(item))));
        for expected in 0..ITEMS {
            loop {
                let mut fds = [sys::wait_for_input(&receiver)];
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
