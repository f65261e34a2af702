//! NumPy arrays as bytes, format versions 1 to 3.
//!
//! | Bytes | Meaning |
//! |---|---|
//! | 6 | `\x93NUMPY` |
//! | 2 | format version, major and minor |
//! | 2 (version 1) or 4 | length of the header, little endian |
//! | that many | Python dictionary with `descr`, `fortran_order`, `shape`; padded with spaces, ends in a line feed |
//! | rest | elements |
//!
//! Source: NumPy's `numpy.lib.format`.

use std::io::{Read, Write};

/// Longest header. NumPy refuses more than 10,000 bytes too unless told otherwise.
const MAX_HEADER_BYTES: usize = 10_000;

/// Most elements of an array: a grid of 1,000 x 1,000 points, several times over.
const MAX_ELEMENTS: usize = 4 << 20;

/// A numeric array, its elements as `f64` in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Array {
    /// Element type as NumPy writes it, such as `<f8`.
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f64>,
}

/// Bytes that are no array of numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NpyError {
    #[error("it ends early")]
    Truncated,
    #[error("it is no NumPy array (it does not start with \\x93NUMPY)")]
    Magic,
    #[error("its NumPy format version {0}.{1} is unknown")]
    Version(u8, u8),
    #[error("its header is broken: {0}")]
    Header(String),
    #[error("its header of {0} bytes is too long")]
    HeaderLength(u64),
    #[error("its element type {0:?} is no number")]
    Dtype(String),
    #[error("it has more than {MAX_ELEMENTS} elements")]
    TooLarge,
    #[error("{0}")]
    Read(String),
}

impl From<std::io::Error> for NpyError {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            Self::Truncated
        } else {
            Self::Read(error.to_string())
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Float,
    Signed,
    Unsigned,
}

/// How one element is written.
#[derive(Clone, Copy)]
struct Element {
    kind: Kind,
    bytes: usize,
    big_endian: bool,
}

impl Element {
    fn parse(dtype: &str) -> Option<Self> {
        let (order, kind) = dtype.split_at_checked(1)?;
        let (kind, bytes) = match kind {
            "f8" => (Kind::Float, 8),
            "f4" => (Kind::Float, 4),
            "i8" => (Kind::Signed, 8),
            "i4" => (Kind::Signed, 4),
            "i2" => (Kind::Signed, 2),
            "i1" => (Kind::Signed, 1),
            "u8" => (Kind::Unsigned, 8),
            "u4" => (Kind::Unsigned, 4),
            "u2" => (Kind::Unsigned, 2),
            "u1" => (Kind::Unsigned, 1),
            _ => return None,
        };
        let big_endian = match (order, bytes) {
            ("<", _) | ("|", 1) => false,
            (">", _) => true,
            _ => return None,
        };
        Some(Self {
            kind,
            bytes,
            big_endian,
        })
    }

    #[allow(clippy::cast_precision_loss)]
    fn value(self, raw: &[u8]) -> f64 {
        let mut word = [0; 8];
        for (at, &byte) in raw.iter().enumerate() {
            word[if self.big_endian { raw.len() - 1 - at } else { at }] = byte;
        }
        let bits = u64::from_le_bytes(word);
        let unused = 64 - 8 * u32::try_from(self.bytes).unwrap_or(8);
        match (self.kind, self.bytes) {
            (Kind::Float, 8) => f64::from_bits(bits),
            (Kind::Float, _) => f64::from(f32::from_bits(u32::try_from(bits).unwrap_or(0))),
            (Kind::Unsigned, _) => bits as f64,
            // The sign bit moves to the top and back.
            (Kind::Signed, _) => ((bits << unused).cast_signed() >> unused) as f64,
        }
    }
}

/// What the dictionary in front of the elements says.
struct Header {
    dtype: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Reads one array.
pub(super) fn read(mut from: impl Read) -> Result<Array, NpyError> {
    let mut start = [0; 8];
    from.read_exact(&mut start)?;
    let [magic @ .., major, minor] = start;
    if &magic != b"\x93NUMPY" {
        return Err(NpyError::Magic);
    }
    let length = match major {
        1 => {
            let mut length = [0; 2];
            from.read_exact(&mut length)?;
            u64::from(u16::from_le_bytes(length))
        }
        2 | 3 => {
            let mut length = [0; 4];
            from.read_exact(&mut length)?;
            u64::from(u32::from_le_bytes(length))
        }
        _ => return Err(NpyError::Version(major, minor)),
    };
    let bytes = usize::try_from(length).ok().filter(|&bytes| bytes <= MAX_HEADER_BYTES);
    let mut header = vec![0; bytes.ok_or(NpyError::HeaderLength(length))?];
    from.read_exact(&mut header)?;
    let header = parse_header(std::str::from_utf8(&header).map_err(|error| NpyError::Header(error.to_string()))?)?;
    let element = Element::parse(&header.dtype).ok_or_else(|| NpyError::Dtype(header.dtype.clone()))?;
    let count = header.shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side));
    let count = count.filter(|&count| count <= MAX_ELEMENTS).ok_or(NpyError::TooLarge)?;
    let mut data = Vec::new();
    let mut raw = vec![0; element.bytes * count.min(4096)];
    while data.len() < count {
        let part = &mut raw[..element.bytes * (count - data.len()).min(4096)];
        from.read_exact(part)?;
        data.extend(part.chunks_exact(element.bytes).map(|one| element.value(one)));
    }
    if header.fortran_order {
        data = row_major(&data, &header.shape);
    }
    Ok(Array {
        dtype: header.dtype,
        shape: header.shape,
        data,
    })
}

/// Writes an array of `f64` in row-major order.
pub(super) fn write(mut to: impl Write, shape: &[usize], data: &[f64]) -> std::io::Result<()> {
    let sides: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let sides = sides.join(", ");
    // A tuple of one needs its comma.
    let comma = if shape.len() == 1 { "," } else { "" };
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({sides}{comma}), }}");
    // Elements start at a multiple of 64 bytes; 11 bytes are the fixed start and the final line feed.
    let padding = (header.len() + 11).next_multiple_of(64) - header.len() - 11;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    to.write_all(b"\x93NUMPY\x01\x00")?;
    let length = u16::try_from(header.len()).map_err(std::io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    data.iter().try_for_each(|value| to.write_all(&value.to_le_bytes()))
}

/// Elements in row-major order from elements whose first index runs fastest.
fn row_major(data: &[f64], shape: &[usize]) -> Vec<f64> {
    let mut index = vec![0; shape.len()];
    let mut rows = Vec::with_capacity(data.len());
    for _ in 0..data.len() {
        let at = index.iter().zip(shape).rev().fold(0, |at, (&i, &side)| at * side + i);
        rows.push(data[at]);
        for (i, &side) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < side {
                break;
            }
            *i = 0;
        }
    }
    rows
}

/// Reads `{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }`.
fn parse_header(text: &str) -> Result<Header, NpyError> {
    let broken = |why: &str| NpyError::Header(format!("{why} in {:?}", text.trim_end()));
    let mut cursor = Cursor(text.trim_end());
    let (mut dtype, mut fortran_order, mut shape) = (None, None, None);
    cursor.expect("{").ok_or_else(|| broken("no dictionary"))?;
    while cursor.expect("}").is_none() {
        let key = cursor.string().ok_or_else(|| broken("no key"))?;
        cursor.expect(":").ok_or_else(|| broken("no value"))?;
        match key {
            // A list here describes a structure, which is no number.
            "descr" => {
                let word = cursor.string().ok_or_else(|| NpyError::Dtype(cursor.0.to_owned()))?;
                dtype = Some(word.to_owned());
            }
            "fortran_order" => fortran_order = Some(cursor.boolean().ok_or_else(|| broken("no True or False"))?),
            "shape" => shape = Some(cursor.tuple().ok_or_else(|| broken("no tuple of lengths"))?),
            _ => return Err(broken("an unknown key")),
        }
        if cursor.expect(",").is_none() && !cursor.0.trim_start().starts_with('}') {
            return Err(broken("no comma"));
        }
    }
    match (dtype, fortran_order, shape) {
        (Some(dtype), Some(fortran_order), Some(shape)) if cursor.0.trim().is_empty() => Ok(Header {
            dtype,
            fortran_order,
            shape,
        }),
        _ => Err(broken("a missing or surplus part")),
    }
}

/// What is left to read of a header.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn expect(&mut self, token: &str) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(token)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
        let (inside, rest) = text[1..].split_once(quote)?;
        self.0 = rest;
        Some(inside)
    }

    fn boolean(&mut self) -> Option<bool> {
        if self.expect("True").is_some() {
            return Some(true);
        }
        self.expect("False").map(|()| false)
    }

    fn tuple(&mut self) -> Option<Vec<usize>> {
        self.expect("(")?;
        let (inside, rest) = self.0.split_once(')')?;
        self.0 = rest;
        let sides = inside.split(',').map(str::trim).filter(|side| !side.is_empty());
        // Python 2 wrote long integers with an L.
        sides.map(|side| side.trim_end_matches('L').parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(header: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        bytes
    }

    fn described(dtype: &str, elements: &[u8]) -> Result<Vec<f64>, NpyError> {
        let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': (1,), }}\n");
        read(bytes(&header, elements).as_slice()).map(|array| array.data)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let data: Vec<f64> = (0..6).map(|n| f64::from(n) / 7.0).collect();
        let mut file = Vec::new();
        write(&mut file, &[2, 3], &data).unwrap();
        assert_eq!(file.len() % 64, 6 * 8);
        let array = read(file.as_slice()).unwrap();
        assert_eq!(
            (array.dtype.as_str(), array.shape, array.data),
            ("<f8", vec![2, 3], data)
        );
    }

    #[test]
    fn bytes_of_numpy_itself_are_read() {
        // np.save(f, np.array([[1, 2], [3, 4]], dtype='>f4')) of NumPy 2.4.6.
        let header = format!(
            "{{'descr': '>f4', 'fortran_order': False, 'shape': (2, 2), }}{}\n",
            " ".repeat(56)
        );
        let elements = [
            [0x3f, 0x80, 0, 0],
            [0x40, 0, 0, 0],
            [0x40, 0x40, 0, 0],
            [0x40, 0x80, 0, 0],
        ]
        .concat();
        let array = read(bytes(&header, &elements).as_slice()).unwrap();
        assert_eq!(array.data, [1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn every_number_type_is_read_in_both_byte_orders() {
        assert_eq!(described("<i8", &(-3i64).to_le_bytes()), Ok(vec![-3.0]));
        assert_eq!(described(">i4", &(-70_000i32).to_be_bytes()), Ok(vec![-70_000.0]));
        assert_eq!(described("<i2", &(-2i16).to_le_bytes()), Ok(vec![-2.0]));
        assert_eq!(described("|i1", &[0xff]), Ok(vec![-1.0]));
        assert_eq!(described("|u1", &[0xff]), Ok(vec![255.0]));
        assert_eq!(described(">u2", &[1, 2]), Ok(vec![258.0]));
        assert_eq!(
            described("<u8", &(1u64 << 40).to_le_bytes()),
            Ok(vec![1_099_511_627_776.0])
        );
        assert_eq!(described("<f4", &1.5f32.to_le_bytes()), Ok(vec![1.5]));
        assert_eq!(described(">f8", &(-0.1f64).to_be_bytes()), Ok(vec![-0.1]));
    }

    #[test]
    fn column_major_elements_are_put_in_rows() {
        let header = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }\n";
        let array = read(bytes(header, &[1, 4, 2, 5, 3, 6]).as_slice()).unwrap();
        assert_eq!(array.data, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn scalars_and_empty_arrays_are_arrays() {
        let scalar = "{\"descr\": \"<f8\", 'fortran_order': False, 'shape': ()}";
        let array = read(bytes(scalar, &2.5f64.to_le_bytes()).as_slice()).unwrap();
        assert_eq!((array.shape, array.data), (vec![], vec![2.5]));
        let empty = "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 7)}";
        assert_eq!(read(bytes(empty, &[]).as_slice()).unwrap().data, Vec::<f64>::new());
    }

    #[test]
    fn broken_bytes_are_refused() {
        let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(read(bytes(header, &[0; 15]).as_slice()), Err(NpyError::Truncated));
        assert_eq!(read(&b"PK"[..]), Err(NpyError::Truncated));
        assert_eq!(read(&b"\x93NUMPX\x01\x00\x00\x00"[..]), Err(NpyError::Magic));
        assert_eq!(read(&b"\x93NUMPY\x09\x00\x00\x00"[..]), Err(NpyError::Version(9, 0)));
        assert_eq!(
            read(&b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..]),
            Err(NpyError::HeaderLength(0xffff_ffff))
        );
        assert_eq!(described("<c16", &[0; 16]), Err(NpyError::Dtype("<c16".into())));
        assert_eq!(described("|O", &[]), Err(NpyError::Dtype("|O".into())));
        assert!(matches!(described("\u{e9}f8", &[]), Err(NpyError::Dtype(_))));
        for shape in ["(4000000000, 4000000000, 4000000000)", "(99999999,)"] {
            let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
            assert_eq!(read(bytes(&header, &[]).as_slice()), Err(NpyError::TooLarge));
        }
        for header in [
            "",
            "{",
            "{}",
            "{'descr': '<f8', 'fortran_order': False}",
            "{'descr': '<f8', 'fortran_order': 0, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'more': 1}",
            "{'descr': '<f8' 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} x",
        ] {
            let found = read(bytes(header, &[0; 8]).as_slice());
            assert!(matches!(found, Err(NpyError::Header(_))), "{header}: {found:?}");
        }
        let structure = "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}";
        assert!(matches!(
            read(bytes(structure, &[0; 8]).as_slice()),
            Err(NpyError::Dtype(_))
        ));
    }
}
