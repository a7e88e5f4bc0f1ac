//! [`Ahead`]: a thread that unpacks what a process lacks before the process needs it.
//!
//! First comes what an earlier process needed, in that order, if the store has it; then what is
//! after the last block that was waited for. A few blocks are ready at a time. It knows the image
//! alone: who lacks a block, and where, its user finds out.

use crate::lacking::{Lacking, Piece};
use crate::spread::BLOCK_BYTES;
use pagetrail::{PageRange, PageSet};
use pagetrail_checkpoint::{Error, Image};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// How many blocks are ready, at both ends of the channel each: 2 MiB of blocks of 64 KiB, or
/// single pages where an earlier process needed no more.
const READY_MOST: usize = 32;

/// What is less than this share of its block, as a divisor, comes without the rest of it.
const ALONE: u64 = 2;

/// A block of the image.
pub(crate) struct Unpacked {
    /// Where it is in the image.
    pub(crate) range: PageRange,
    pub(crate) contents: Vec<u8>,
    /// What of it, or beside it, an earlier process needed.
    pub(crate) touched: Option<PageRange>,
}

/// What there is to do.
pub(crate) enum Next {
    Block(Unpacked),
    /// A block is being unpacked; there will be a notice.
    Later,
    /// All has been unpacked.
    Over,
}

/// Blocks that are unpacked before they are needed.
#[derive(Default)]
pub(crate) struct Ahead {
    running: Option<Running>,
    ready: VecDeque<Unpacked>,
}

struct Running {
    blocks: Receiver<Result<Unpacked, Error>>,
    news: Arc<News>,
    /// Gives the order in which an earlier process needed pages.
    thread: JoinHandle<Vec<PageRange>>,
    is_over: bool,
}

/// What the two sides tell each other.
struct News {
    /// Readable when there is a block, or the last has been.
    notice: OwnedFd,
    brought: Mutex<Brought>,
}

#[derive(Default)]
struct Brought {
    blocks: Vec<PageRange>,
    /// The end of the last block that was waited for.
    goes_on: Option<u64>,
}

impl Ahead {
    /// Begins with an image of which this is lacked, where it is in the image.
    pub(crate) fn begin(&mut self, image: Image, lacking: Lacking) -> Result<(), Errno> {
        let news = Arc::new(News {
            notice: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            brought: Mutex::default(),
        });
        let (sender, blocks) = sync_channel(READY_MOST);
        let worker = Worker {
            image,
            lacking,
            sender,
            news: Arc::clone(&news),
        };
        let thread = Builder::new().name("unpack".into());
        let thread = thread.spawn(move || worker.run());
        self.running = Some(Running {
            blocks,
            news,
            thread: thread.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?,
            is_over: false,
        });
        Ok(())
    }

    /// What becomes readable when there is a block.
    pub(crate) fn notice(&self) -> Option<&OwnedFd> {
        let running = self.running.as_ref().filter(|running| !running.is_over);
        running.map(|running| &running.news.notice)
    }

    /// Takes a notice.
    pub(crate) fn noticed(&self) {
        if let Some(running) = &self.running {
            // There may be none: only whether there is one counts.
            let _ = rustix::io::read(&running.news.notice, &mut [0; 8]);
        }
    }

    /// Moves blocks to where they can be searched.
    fn receive(&mut self) -> Result<(), Error> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        while self.ready.len() < READY_MOST && !running.is_over {
            match running.blocks.try_recv() {
                Ok(block) => self.ready.push_back(block?),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => running.is_over = true,
            }
        }
        Ok(())
    }

    /// The next block.
    ///
    /// # Errors
    ///
    /// The store is damaged, or fails.
    pub(crate) fn take(&mut self) -> Result<Next, Error> {
        self.receive()?;
        Ok(match self.ready.pop_front() {
            Some(block) => Next::Block(block),
            None => match &self.running {
                Some(running) if !running.is_over => Next::Later,
                _ => Next::Over,
            },
        })
    }

    /// Takes the block with an address of the image, if it is ready.
    ///
    /// # Errors
    ///
    /// As [`Self::take`].
    pub(crate) fn find(&mut self, address: u64) -> Result<Option<Unpacked>, Error> {
        self.receive()?;
        let has = |block: &Unpacked| block.range.contains(address);
        let at = self.ready.iter().position(has);
        let block = at.and_then(|at| self.ready.remove(at));
        if let Some(block) = &block {
            self.tell(None, block.range.end());
        }
        Ok(block)
    }

    /// A block was unpacked elsewhere, since somebody waited for it.
    pub(crate) fn was_brought(&self, block: PageRange) {
        self.tell(Some(block), block.end());
    }

    fn tell(&self, brought: Option<PageRange>, goes_on: u64) {
        let running = self.running.as_ref().filter(|running| !running.is_over);
        if let Some(running) = running {
            let mut news = lock(&running.news.brought);
            news.blocks.extend(brought);
            news.goes_on = Some(goes_on);
        }
    }

    /// Ends it; gives the order in which pages were needed this time, and after that those that
    /// only an earlier process needed.
    pub(crate) fn end(&mut self, touches: Vec<PageRange>) -> Vec<PageRange> {
        let Some(running) = self.running.take() else {
            return touches;
        };
        // It ends when it finds that nobody takes its blocks.
        drop(running.blocks);
        let earlier = running.thread.join().unwrap_or_default();
        let known: PageSet = touches.iter().copied().collect();
        let mut order = touches;
        let rest = earlier.into_iter();
        order.extend(rest.filter(|range| !known.contains(range.start())));
        order
    }
}

fn lock(brought: &Mutex<Brought>) -> std::sync::MutexGuard<'_, Brought> {
    brought.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread has.
struct Worker {
    image: Image,
    /// What was lacked in the beginning, and has not been unpacked.
    lacking: Lacking,
    sender: SyncSender<Result<Unpacked, Error>>,
    news: Arc<News>,
}

impl Worker {
    fn run(mut self) -> Vec<PageRange> {
        let order = self.image.first_touches().unwrap_or_default();
        let is_wanted = self.bring_in_order(&order) && self.bring_the_rest();
        drop(self.sender);
        if is_wanted {
            tell_of_news(&self.news);
        }
        order
    }

    /// Whether somebody wants more.
    fn bring_in_order(&mut self, order: &[PageRange]) -> bool {
        // An order from elsewhere may name pages as often as it likes.
        let mut left = self.lacking.bytes();
        for range in order {
            let Some(rest) = left.checked_sub(range.bytes()) else {
                break;
            };
            left = rest;
            let mut at = range.start();
            while let Some(piece) = self.lacking.from(at).and_then(|piece| piece.within(*range)) {
                let is_wanted = match self.next_block(piece) {
                    // What was needed alone comes alone: the rest of its block would be in the way
                    // of what was needed next.
                    Some(block) if range.bytes() < block.bytes() / ALONE => {
                        at = piece.range.end();
                        self.bring(piece.range, Some(*range))
                    }
                    Some(block) => {
                        at = block.end();
                        self.bring(block, Some(*range))
                    }
                    None => return true,
                };
                if !is_wanted {
                    return false;
                }
            }
        }
        true
    }

    fn bring_the_rest(&mut self) -> bool {
        let mut next = 0;
        loop {
            next = self.hear().unwrap_or(next);
            let Some(piece) = self.lacking.from(next).or_else(|| self.lacking.next(next)) else {
                return true;
            };
            // What it cannot find, who needs it finds missing.
            let Some(block) = self.next_block(piece) else {
                return true;
            };
            next = block.end();
            if !self.bring(block, None) {
                return false;
            }
        }
    }

    /// What is unpacked next of a piece: what the store has together, and more of the piece where
    /// that is little.
    fn next_block(&self, piece: Piece) -> Option<PageRange> {
        let block = self.image.block(piece.range.start())?;
        let wanted = piece.range.end().min(block.start() + BLOCK_BYTES);
        PageRange::new(block.start(), block.end().max(wanted))
    }

    /// Forgets what was brought meanwhile; says where to go on.
    fn hear(&mut self) -> Option<u64> {
        let news = std::mem::take(&mut *lock(&self.news.brought));
        for block in news.blocks {
            self.lacking.remove(block);
        }
        news.goes_on
    }

    fn bring(&mut self, block: PageRange, touched: Option<PageRange>) -> bool {
        if touched.is_some() {
            let _ = self.hear();
            if self.lacking.within(block).is_empty() {
                return true;
            }
        }
        self.lacking.remove(block);
        let mut contents = vec![0; block.bytes() as usize];
        let read = self.image.read(block, &mut contents);
        let is_whole = read.is_ok();
        let unpacked = read.map(|()| Unpacked {
            range: block,
            contents,
            touched,
        });
        let is_wanted = self.sender.send(unpacked).is_ok();
        tell_of_news(&self.news);
        is_wanted && is_whole
    }
}

fn tell_of_news(news: &News) {
    // It fails only where nobody has looked for 2^64 - 1 of them.
    let _ = rustix::io::write(&news.notice, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetrail::Permissions;
    use pagetrail_checkpoint::storage::InMemory;
    use pagetrail_checkpoint::{Description, Mapping, Store, WriterOptions};

    const PAGE: u64 = 4096;
    const PAGES: u64 = 300;

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(from * PAGE, to * PAGE).unwrap()
    }

    fn contents(page: u64) -> Vec<u8> {
        page.to_le_bytes().repeat(PAGE as usize / 8)
    }

    fn image() -> Image {
        let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
        let mut writer = store.writer(WriterOptions::default()).unwrap();
        let mut draft = writer.draft(PAGE as u32);
        let all: Vec<u8> = (1..=PAGES).flat_map(contents).collect();
        draft.put(&[range(1, PAGES + 1)], &all).unwrap();
        let mapping = Mapping {
            range: range(1, PAGES + 1),
            permissions: Permissions {
                read: true,
                write: true,
                execute: false,
                shared: false,
            },
            offset: 0,
            device: (0, 0),
            inode: 0,
            name: String::new(),
            build_id: Vec::new(),
            saved: true,
            own_writes_only: false,
        };
        let description = Description {
            mappings: vec![mapping],
            ..Description::default()
        };
        draft.publish(description).unwrap();
        store.image(1).unwrap()
    }

    /// All blocks in their order.
    fn unpacked(ahead: &mut Ahead) -> Vec<Unpacked> {
        let mut blocks = Vec::new();
        loop {
            match ahead.take().unwrap() {
                Next::Block(block) => blocks.push(block),
                Next::Later => std::thread::yield_now(),
                Next::Over => return blocks,
            }
        }
    }

    #[test]
    fn what_was_needed_comes_first_and_everything_once() {
        let image = image();
        // As often as it likes, and where nothing is.
        let order = [
            range(200, 201),
            range(20, 40),
            range(200, 201),
            range(9000, 9001),
            range(90, 91),
        ];
        assert!(image.keep_first_touches(&order).unwrap());
        let lacked = PageSet::from_iter([range(1, 80), range(85, PAGES + 1)]);
        let mut ahead = Ahead::default();
        ahead.begin(image.share(), Lacking::of(&lacked)).unwrap();
        let blocks = unpacked(&mut ahead);
        let touched: Vec<Option<PageRange>> = blocks.iter().map(|block| block.touched).collect();
        let in_order = [0, 1, 1, 4].map(|at| Some(order[at]));
        assert_eq!(touched[..4], in_order);
        assert!(touched[4..].iter().all(Option::is_none));
        let (mut seen, mut alone) = (PageSet::new(), PageSet::new());
        for block in &blocks {
            // A page that came alone may come again, with the rest of its block.
            let is_new = !seen.difference(&alone).intersects(block.range);
            assert!(is_new, "{} twice", block.range);
            seen.insert(block.range);
            if block.range.bytes() == PAGE {
                alone.insert(block.range);
            }
            let pages = block.range.start() / PAGE..block.range.end() / PAGE;
            assert_eq!(
                block.contents,
                pages.flat_map(contents).collect::<Vec<u8>>()
            );
        }
        assert_eq!(lacked.difference(&seen), PageSet::new());
        let needed = [200, 90].map(|page| range(page, page + 1));
        assert_eq!(alone, PageSet::from_iter(needed));
        // What was needed this time comes before what was needed earlier.
        let this_time = vec![range(30, 31), range(200, 202)];
        let expected = [&this_time[..], &order[1..2], &order[3..]].concat();
        assert_eq!(ahead.end(this_time), expected);
    }

    #[test]
    fn a_block_that_is_ready_is_found_and_its_end_waits_for_no_other() {
        let lacked = PageSet::from_iter([range(1, PAGES + 1)]);
        let mut ahead = Ahead::default();
        ahead.begin(image(), Lacking::of(&lacked)).unwrap();
        let found = loop {
            if let Some(block) = ahead.find(3 * PAGE).unwrap() {
                break block;
            }
            std::thread::yield_now();
        };
        assert!(found.range.contains(3 * PAGE));
        assert!(ahead.find(3 * PAGE).unwrap().is_none());
        // More blocks are left than are ready.
        assert_eq!(ahead.end(Vec::new()), []);
        assert!(matches!(ahead.take(), Ok(Next::Block(_) | Next::Over)));
    }
}
