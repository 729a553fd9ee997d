//! PURE: reads the few fields of `TensorBoard`'s `Event` that contain scalars from the protobuf wire format. It is
//! written by hand, because a generated reader would be larger than all other collectors.
//!
//! Field numbers are those of TensorFlow's `event.proto`, `summary.proto`, `tensor.proto` and `types.proto`. Fields
//! that are not named here are skipped.

/// One number under one tag.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scalar<'a> {
    pub(super) tag: &'a str,
    pub(super) step: i64,
    pub(super) value: f64,
}

/// The error of bytes that are not a protobuf message of this kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedEvent;

/// One field of a message.
#[derive(Debug, Clone, Copy)]
enum WireValue<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// Returns the scalars of one event.
pub(super) fn read_scalars(event: &[u8]) -> Result<Vec<Scalar<'_>>, MalformedEvent> {
    let mut step = 0;
    let mut scalars = Vec::new();
    for field in Fields(event) {
        match field? {
            (2, WireValue::Varint(number)) => step = number.cast_signed(),
            (5, WireValue::Bytes(summary)) => {
                for field in Fields(summary) {
                    if let (1, WireValue::Bytes(value)) = field? {
                        scalars.extend(read_scalar(value)?);
                    }
                }
            }
            _ => {}
        }
    }
    // The step may follow the summary.
    for scalar in &mut scalars {
        scalar.step = step;
    }
    Ok(scalars)
}

/// Returns whether an event that starts with `head` has a summary: its first length-delimited field must be one.
pub(super) fn begins_summary(mut head: &[u8]) -> bool {
    loop {
        match read_key(&mut head) {
            Ok((field, 2)) => return field == 5,
            Ok((_, kind)) if read_value(kind, &mut head).is_ok() => {}
            Ok(_) | Err(MalformedEvent) => return false,
        }
    }
}

/// Reads a `Summary.Value`, if it contains one number.
fn read_scalar(value: &[u8]) -> Result<Option<Scalar<'_>>, MalformedEvent> {
    let mut tag = None;
    let mut number = None;
    for field in Fields(value) {
        match field? {
            (1, WireValue::Bytes(text)) => {
                tag = Some(std::str::from_utf8(text).map_err(|_| MalformedEvent)?);
            }
            (2, WireValue::Fixed32(simple)) => {
                number = Some(widen_float(f32::from_le_bytes(simple)));
            }
            (8, WireValue::Bytes(bytes)) => number = read_tensor(bytes)?,
            _ => {}
        }
    }
    Ok(tag.zip(number).map(|(tag, value)| Scalar { tag, step: 0, value }))
}

/// Reads a `TensorProto`, if it contains one number of a type that scalars have.
fn read_tensor(bytes: &[u8]) -> Result<Option<f64>, MalformedEvent> {
    let mut kind = 0;
    let mut content: &[u8] = &[];
    let mut numbers = Vec::new();
    for field in Fields(bytes) {
        match field? {
            (1, WireValue::Varint(number)) => kind = number,
            (4, WireValue::Bytes(bytes)) => content = bytes,
            // float_val, double_val, int_val, int64_val, half_val: single or packed.
            (field @ (5 | 6 | 7 | 10 | 13), value) => collect_numbers(field, value, &mut numbers)?,
            _ => {}
        }
    }
    let inline = match (kind, content.len()) {
        (1, 4) => content.try_into().ok().map(|bytes| widen_float(f32::from_le_bytes(bytes))),
        (2, 8) => content.try_into().ok().map(f64::from_le_bytes),
        (3, 4) => content.try_into().ok().map(|bytes| f64::from(i32::from_le_bytes(bytes))),
        (9, 8) => content.try_into().ok().map(|bytes| integer_to_f64(i64::from_le_bytes(bytes))),
        (14 | 19, 2) => {
            content.try_into().ok().map(|bytes| decode_half(kind, u16::from_le_bytes(bytes)))
        }
        _ => None,
    };
    let listed = match numbers[..] {
        // The two 16-bit types share a field.
        [Number::Half(bits)] => Some(decode_half(kind, bits)),
        [Number::Float(number)] => Some(number),
        _ => None,
    };
    Ok(inline.or(listed))
}

enum Number {
    Float(f64),
    Half(u16),
}

fn collect_numbers(
    field: u64,
    value: WireValue<'_>,
    numbers: &mut Vec<Number>,
) -> Result<(), MalformedEvent> {
    let number = |varint: u64| match field {
        13 => u16::try_from(varint).map(Number::Half).map_err(|_| MalformedEvent),
        _ => Ok(Number::Float(integer_to_f64(varint.cast_signed()))),
    };
    match (field, value) {
        (5, WireValue::Fixed32(bytes)) => {
            numbers.push(Number::Float(widen_float(f32::from_le_bytes(bytes))));
        }
        (5, WireValue::Bytes(packed)) => numbers.extend(
            packed
                .as_chunks()
                .0
                .iter()
                .map(|bytes| Number::Float(widen_float(f32::from_le_bytes(*bytes)))),
        ),
        (6, WireValue::Fixed64(bytes)) => numbers.push(Number::Float(f64::from_le_bytes(bytes))),
        (6, WireValue::Bytes(packed)) => numbers.extend(
            packed.as_chunks().0.iter().map(|bytes| Number::Float(f64::from_le_bytes(*bytes))),
        ),
        (7 | 10 | 13, WireValue::Varint(varint)) => numbers.push(number(varint)?),
        (7 | 10 | 13, WireValue::Bytes(mut packed)) => {
            while !packed.is_empty() {
                numbers.push(number(read_varint(&mut packed)?)?);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns the double with the shortest decimal representation of this float, which is nearest to the trial's number.
/// (0.1 written as a float is 0.1, not 0.10000000149.)
fn widen_float(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "the nearest float is what a float metric needs"
)]
fn integer_to_f64(number: i64) -> f64 {
    number as f64
}

/// Decodes a bfloat16 (type 14) or an IEEE half (type 19).
fn decode_half(kind: u64, bits: u16) -> f64 {
    let wide = u32::from(bits);
    if kind == 14 {
        return f64::from(f32::from_bits(wide << 16));
    }
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff) / 1024.0;
    sign * match exponent {
        0 => fraction * 2_f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2_f64.powi(exponent - 15),
    }
}

/// The fields of a message, in order. The iterator ends after the first malformed field.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, WireValue<'a>), MalformedEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = read_field(&mut self.0);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn read_field<'a>(bytes: &mut &'a [u8]) -> Result<(u64, WireValue<'a>), MalformedEvent> {
    let (field, kind) = read_key(bytes)?;
    Ok((field, read_value(kind, bytes)?))
}

/// Reads the number and the wire type of a field.
fn read_key(bytes: &mut &[u8]) -> Result<(u64, u64), MalformedEvent> {
    let key = read_varint(bytes)?;
    Ok((key >> 3, key & 7))
}

fn read_value<'a>(kind: u64, bytes: &mut &'a [u8]) -> Result<WireValue<'a>, MalformedEvent> {
    Ok(match kind {
        0 => WireValue::Varint(read_varint(bytes)?),
        1 => WireValue::Fixed64(read_fixed(bytes)?),
        2 => {
            let length = usize::try_from(read_varint(bytes)?).map_err(|_| MalformedEvent)?;
            let (value, rest) = bytes.split_at_checked(length).ok_or(MalformedEvent)?;
            *bytes = rest;
            WireValue::Bytes(value)
        }
        5 => WireValue::Fixed32(read_fixed(bytes)?),
        _ => return Err(MalformedEvent),
    })
}

fn read_fixed<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], MalformedEvent> {
    let (value, rest) = bytes.split_first_chunk().ok_or(MalformedEvent)?;
    *bytes = rest;
    Ok(*value)
}

fn read_varint(bytes: &mut &[u8]) -> Result<u64, MalformedEvent> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(MalformedEvent)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(MalformedEvent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn halves_are_decoded_by_type() {
        #[rustfmt::skip]
        let table = [
            ("half 0.5",             19, 0x3800, 0.5),
            ("half -2",              19, 0xc000, -2.0),
            ("half, the smallest",   19, 0x0001, 2_f64.powi(-24)),
            ("half, the largest",    19, 0x7bff, 65_504.0),
            ("half, infinite",       19, 0xfc00, f64::NEG_INFINITY),
            ("half, no number",      19, 0x7e00, f64::NAN),
            ("bfloat16 0.5",         14, 0x3f00, 0.5),
            ("bfloat16 -2",          14, 0xc000, -2.0),
        ];
        for (case, kind, bits, expected) in table {
            assert_eq!(decode_half(kind, bits).to_bits(), f64::to_bits(expected), "{case}");
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        #[rustfmt::skip]
        let table: [(&str, &[u8]); 6] = [
            ("a cut varint",      &[0x10, 0x80]),
            ("an endless varint", &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            ("a cut message",     &[0x2a, 5, 1]),
            ("a cut double",      &[0x09, 1, 2]),
            ("a group",           &[0x0b]),
            ("a tag of no text",  &[0x2a, 5, 0x0a, 3, 0x0a, 1, 0xff]),
        ];
        for (case, bytes) in table {
            assert_eq!(read_scalars(bytes), Err(MalformedEvent), "{case}");
        }
    }

    proptest! {
        #[test]
        fn events_of_random_bytes_never_panic(bytes: Vec<u8>) {
            drop(read_scalars(&bytes));
            drop(read_tensor(&bytes));
            begins_summary(&bytes);
        }
    }
}
