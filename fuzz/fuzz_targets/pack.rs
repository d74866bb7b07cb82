//! A pack of random words: whatever the lengths say, what the reader hands out lies inside, in order and apart, and there is no
//! more of it than the descriptor says.
#![no_main]

use insane_shm::link::INLINE_BYTES;
use insane_shm::pack::{MAX_COPIED, MAX_MESSAGE, MAX_MESSAGES, PackReader, copy_words};
use libfuzzer_sys::fuzz_target;
use std::ptr::NonNull;

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let count = u16::from(*first) % (MAX_MESSAGES + 2);
    let words: Vec<u64> = rest.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
    // Not all of the last word is a part of the pack.
    let length = (words.len() * 8).saturating_sub(usize::from(*first) % 8) as u32;
    let base = NonNull::new(words.as_ptr().cast_mut().cast::<u8>()).unwrap_or(NonNull::dangling());
    // `words` has at least so many bytes, aligned, and lives until the end.
    let longest = if first & 64 == 0 { MAX_COPIED } else { MAX_MESSAGE };
    // SAFETY: as above.
    let mut reader = unsafe { PackReader::new(base, length, count, longest) };
    let (mut seen, mut end) = (0, 0);
    while let Some(Ok(found)) = reader.next() {
        assert!(found.offset >= end + 8 && found.offset % 8 == 0 && found.length <= longest);
        end = found.offset + found.length;
        assert!(end <= length);
        seen += 1;
        if found.length > MAX_COPIED {
            continue;
        }
        let mut to = [0; INLINE_BYTES / 8];
        // SAFETY: it lies inside, and the memory ends with a whole word.
        let at = unsafe { base.add(found.offset as usize) };
        // SAFETY: as above.
        unsafe { copy_words(at, found.length, &mut to) };
    }
    assert!(seen <= count);
});
