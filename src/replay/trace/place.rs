//! Where the rows of a file begin: a few bytes each, so that rows can be read again when they are due.

use std::io::{self, BufRead, BufReader, Read, Seek};

/// Rows that share a base.
const SHARED: usize = 64;

/// A reader that can go back and forth.
pub trait Rewind: BufRead {
    /// Goes from byte `from`, where it is, to byte `to`.
    ///
    /// # Errors
    /// Those of the file.
    fn go_to(&mut self, from: u64, to: u64) -> io::Result<()>;
}

impl<R: Read + Seek> Rewind for BufReader<R> {
    fn go_to(&mut self, from: u64, to: u64) -> io::Result<()> {
        // Neighbours are in the buffer already.
        self.seek_relative(to.cast_signed() - from.cast_signed())
    }
}

/// Bytes at which rows begin, ascending; about four bytes for each.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    bases: Vec<u64>,
    /// Behind the base. Less than 2^32, because a line is at most 2^26 bytes long.
    behind: Vec<u32>,
}

impl Offsets {
    pub(crate) fn push(&mut self, offset: u64) {
        if self.behind.len().is_multiple_of(SHARED) {
            self.bases.push(offset);
        }
        let base = self.bases.last().copied().unwrap_or(0);
        self.behind.push(u32::try_from(offset - base).unwrap_or(u32::MAX));
    }

    pub(crate) fn get(&self, row: u32) -> u64 {
        let row = row as usize;
        self.bases[row / SHARED] + u64::from(self.behind[row])
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.behind.len()).unwrap_or(u32::MAX)
    }
}

/// Line numbers of rows: rows and lines count alike except for blank lines.
#[derive(Debug, Default)]
pub(crate) struct LineNumbers {
    /// From this row on, so many lines were not rows.
    blanks: Vec<(u32, u64)>,
}

impl LineNumbers {
    pub(crate) fn push(&mut self, row: u32, line: u64) {
        let blank = line - 1 - u64::from(row);
        if self.blanks.last().is_none_or(|&(_, before)| before != blank) {
            self.blanks.push((row, blank));
        }
    }

    pub(crate) fn get(&self, row: u32) -> u64 {
        let at = self.blanks.partition_point(|&(from, _)| from <= row);
        let blank = at.checked_sub(1).map_or(0, |at| self.blanks[at].1);
        u64::from(row) + 1 + blank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_where_it_began() {
        let mut offsets = Offsets::default();
        let begins: Vec<u64> = (0..500).map(|row: u64| (row << 26) + row).collect();
        for &begin in &begins {
            offsets.push(begin);
        }
        let found: Vec<u64> = (0..offsets.len()).map(|row| offsets.get(row)).collect();
        assert_eq!(found, begins);
    }

    #[test]
    fn blank_lines_count_as_lines_and_not_as_rows() {
        let mut numbers = LineNumbers::default();
        let lines = [2, 3, 4, 9, 10];
        for (row, line) in (0..).zip(lines) {
            numbers.push(row, line);
        }
        assert_eq!([0, 1, 2, 3, 4].map(|row| numbers.get(row)), lines);
        assert_eq!(numbers.blanks.len(), 2);
    }
}
