//! Hash ids of a graph's prompts: in memory, or in a file where a large trace leaves them until they are due.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Hash ids of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashIds {
    /// The ids.
    Here(Vec<u64>),
    /// Where a [`IdStore`] has them.
    Away(Away),
}

/// A place in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    at: u64,
    bytes: u32,
}

impl Default for HashIds {
    fn default() -> Self {
        Self::Here(Vec::new())
    }
}

impl HashIds {
    /// The ids; none if they are away.
    pub(crate) fn into_here(self) -> Vec<u64> {
        match self {
            Self::Here(ids) => ids,
            Self::Away(_) => Vec::new(),
        }
    }
}

impl From<Vec<u64>> for HashIds {
    fn from(ids: Vec<u64>) -> Self {
        Self::Here(ids)
    }
}

/// Bytes that can be read anywhere.
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Fills `into` with the bytes from `at` on.
    ///
    /// # Errors
    /// Those of the file.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

/// Takes hash ids while a trace is read: keeps them in memory, or writes them away.
#[derive(Default)]
pub struct IdSink {
    away: Option<Writing>,
}

struct Writing {
    file: Box<dyn Write>,
    written: u64,
    bytes: Vec<u8>,
    store: Arc<dyn ReadAt>,
}

/// Where the ids of a graph are, if they are not in it.
#[derive(Debug, Clone, Default)]
pub struct IdStore(Option<Arc<dyn ReadAt>>);

impl IdSink {
    /// A sink that writes to the end of `file`, from whose begin `store` reads.
    pub fn away(file: Box<dyn Write>, store: Arc<dyn ReadAt>) -> Self {
        Self {
            away: Some(Writing {
                file,
                written: 0,
                bytes: Vec::new(),
                store,
            }),
        }
    }

    /// Takes the ids of one prompt.
    ///
    /// # Errors
    /// Those of the file.
    pub fn put(&mut self, ids: Vec<u64>) -> io::Result<HashIds> {
        let Some(writing) = &mut self.away else {
            return Ok(HashIds::Here(ids));
        };
        writing.bytes.clear();
        pack(&ids, &mut writing.bytes);
        writing.file.write_all(&writing.bytes)?;
        let place = Away {
            at: writing.written,
            bytes: u32::try_from(writing.bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?,
        };
        writing.written += u64::from(place.bytes);
        Ok(HashIds::Away(place))
    }

    /// Ends the writing.
    ///
    /// # Errors
    /// Those of the file.
    pub fn finish(self) -> io::Result<IdStore> {
        let Some(mut writing) = self.away else {
            return Ok(IdStore::default());
        };
        writing.file.flush()?;
        Ok(IdStore(Some(writing.store)))
    }
}

impl fmt::Debug for IdSink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = self.away.as_ref().map(|writing| writing.written);
        out.debug_struct("IdSink").field("written", &written).finish()
    }
}

impl IdStore {
    /// The ids.
    ///
    /// # Errors
    /// Those of the file; or it is not what was written.
    pub fn get<'a>(&self, ids: &'a HashIds) -> io::Result<Cow<'a, [u64]>> {
        match ids {
            HashIds::Here(ids) => Ok(Cow::Borrowed(ids)),
            HashIds::Away(place) => self.fetch(*place).map(Cow::Owned),
        }
    }

    /// Ids that are away.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn fetch(&self, place: Away) -> io::Result<Vec<u64>> {
        let store = self.0.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = vec![0; place.bytes as usize];
        store.read_at(place.at, &mut bytes)?;
        unpack(&bytes)
    }
}

/// Differences from id to id, small ones in few bytes: consecutive ids take one byte each, any others ten at most.
fn pack(ids: &[u64], bytes: &mut Vec<u8>) {
    let mut before = 0_u64;
    for &id in ids {
        let difference = id.wrapping_sub(before).cast_signed();
        before = id;
        // Signs go to the lowest bit.
        let mut rest = ((difference << 1) ^ (difference >> 63)).cast_unsigned();
        while rest >= 0x80 {
            #[allow(clippy::cast_possible_truncation)]
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        #[allow(clippy::cast_possible_truncation)]
        bytes.push(rest as u8);
    }
}

fn unpack(bytes: &[u8]) -> io::Result<Vec<u64>> {
    let mut ids = Vec::new();
    let (mut before, mut rest, mut shift) = (0_u64, 0_u64, 0);
    for &byte in bytes {
        if shift > 63 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rest |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            let difference = (rest >> 1) ^ (rest & 1).wrapping_neg();
            before = before.wrapping_add(difference);
            ids.push(before);
            (rest, shift) = (0, 0);
        }
    }
    if shift == 0 {
        Ok(ids)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file in memory.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl ReadAt for Shared {
        fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
            let bytes = self.0.lock().unwrap();
            let at = usize::try_from(at).unwrap();
            let found = bytes.get(at..at + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            into.copy_from_slice(found);
            Ok(())
        }
    }

    impl Shared {
        pub(crate) fn sink(&self) -> IdSink {
            IdSink::away(Box::new(self.clone()), Arc::new(self.clone()))
        }

        /// Loses what was written.
        pub(crate) fn clear(&self) {
            self.0.lock().unwrap().clear();
        }
    }

    #[test]
    fn ids_come_back_as_they_were() {
        let prompts: [&[u64]; 5] = [
            &[],
            &[5, 6, 7, 8],
            &[u64::MAX, 0, u64::MAX],
            &[1 << 63, 3],
            &[900, 1, 1, 1 << 40],
        ];
        let file = Shared::default();
        let mut sink = file.sink();
        let kept: Vec<HashIds> = prompts.iter().map(|ids| sink.put(ids.to_vec()).unwrap()).collect();
        let store = sink.finish().unwrap();
        for (ids, kept) in prompts.iter().zip(&kept) {
            assert_eq!(&store.get(kept).unwrap()[..], *ids);
        }
        file.clear();
        assert!(store.get(&kept[1]).is_err());
    }

    #[test]
    fn consecutive_ids_take_a_byte_each() {
        let mut bytes = Vec::new();
        pack(&(1000..2000).collect::<Vec<_>>(), &mut bytes);
        assert_eq!(bytes.len(), 1001);
    }

    #[test]
    fn what_was_never_written_is_an_error() {
        for bytes in [&[0x80_u8][..], &[0xff; 11]] {
            assert!(unpack(bytes).is_err());
        }
    }
}
