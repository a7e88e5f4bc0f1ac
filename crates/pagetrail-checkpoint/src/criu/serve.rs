//! Answering CRIU's requests for pages: what `criu lazy-pages` asks for as a restored process
//! touches its memory, and ahead of that.

use super::contents::Contents;
use super::link::{Link, broken};
use super::protocol::Request;
use super::space::{SpaceId, place};
use crate::error::{Error, Result};
use crate::format::wire::Malformed;
use crate::store::image::Image;
use pagetrail::PageRange;
use std::io::{Read, Write};

/// The most pages that are given at a time; the client asks again for the others.
const ANSWER_PAGES_MAX: u64 = 1024;

/// Gives out an image's pages until the client has had enough; `first` is the request that was read
/// already. Says how many it gave.
pub(super) fn serve<S: Read + Write>(
    link: &mut Link<S>,
    first: Option<Request>,
    image: &mut Image,
    contents: &Contents,
) -> Result<u64> {
    let page_size = u64::from(image.manifest().page_size);
    let (mut next, mut given) = (first, 0);
    let mut buffer = Vec::new();
    loop {
        let request = match next.take() {
            Some(request) => request,
            None => match link.next()? {
                Some(request) => request,
                None => return Ok(given),
            },
        };
        match request {
            Request::Get {
                pid,
                address,
                pages,
            } => {
                let range = find(contents, pid, address, pages, page_size)?;
                buffer.resize(range.bytes() as usize, 0);
                image.read(range, &mut buffer)?;
                let pages = range.bytes() / page_size;
                link.found(pid, address, pages, &buffer)?;
                given += pages;
            }
            Request::Close => {
                link.done()?;
                return Ok(given);
            }
            _ => return Err(broken(Malformed("it asks for pages and sends some"))),
        }
    }
}

/// Where the pages lie that are to be given: at most so many, and no more than there are in a row.
fn find(
    contents: &Contents,
    pid: u32,
    address: u64,
    pages: u64,
    page_size: u64,
) -> Result<PageRange> {
    let lacks = || {
        let reason = format!("the checkpoint has no page of process {pid} at {address:#x}");
        Error::Refused(reason)
    };
    let space = contents.space(SpaceId::Process(pid)).ok_or_else(lacks)?;
    let pages = pages.min(ANSWER_PAGES_MAX);
    let wanted = place(space.slot, address, pages, page_size).map_err(broken)?;
    let ranges = space.pages.ranges();
    let at = ranges.partition_point(|range| range.end() <= wanted.start());
    let there = ranges.get(at).filter(|r| r.start() <= wanted.start());
    there
        .and_then(|range| range.intersection(&wanted))
        .ok_or_else(lacks)
}
