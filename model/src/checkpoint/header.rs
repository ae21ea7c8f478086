//! The header of a safetensors file: 8 bytes of little-endian length, that many bytes of JSON, then the tensors' data.
//!
//! Parsed here rather than by the `safetensors` crate, whose errors carry no byte counts. The same rules hold: tensors
//! cover the data without overlap, gap or rest.

use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo as Described;

use super::unique::ByTensor;
use crate::error::{Error, Result};

/// Bytes before the JSON.
const LENGTH_BYTES: usize = 8;

/// A tensor of one file.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Bytes of the file that hold the data.
    pub range: Range<usize>,
}

/// The header of `file`: its end, where data starts, and the tensors in the order of their data. Allocates in
/// proportion to the JSON that is there, whatever sizes it claims.
pub(super) fn parse(path: &Path, file: &[u8]) -> Result<(usize, Vec<Entry>)> {
    let error = |message: String| Error::Checkpoint { path: path.to_owned(), message };
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        let found = file.len();
        return Err(error(format!(
            "file has {found} bytes, expected at least {LENGTH_BYTES} (a safetensors file starts with the length of its header)"
        )));
    };
    let length = u64::from_le_bytes(*length);
    let json = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(|| {
        error(format!(
            "file has {} bytes, expected at least {} ({LENGTH_BYTES} + a header of {length}): it is truncated, or not a safetensors file",
            file.len(),
            u128::from(length) + LENGTH_BYTES as u128,
        ))
    })?;
    let ByTensor(described) = serde_json::from_slice::<ByTensor<Described>>(json)
        .map_err(|source| error(format!("header of {length} bytes is not a safetensors header: {source}")))?;

    let mut described: Vec<_> = described.into_iter().collect();
    described.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let data_start = LENGTH_BYTES + json.len();
    let data_bytes = file.len() - data_start;
    let mut end_of_previous = 0;
    for (i, (name, tensor)) in described.iter().enumerate() {
        let (start, end) = tensor.data_offsets;
        let expected = byte_size(tensor).map_err(|why| error(format!("tensor {name} {why}")))?;
        if end.checked_sub(start) != Some(expected) {
            let (dtype, shape) = (tensor.dtype, &tensor.shape);
            return Err(error(format!(
                "tensor {name} has data_offsets [{start}, {end}], expected a span of {expected} bytes for {dtype} {shape:?}"
            )));
        }
        if start < end_of_previous {
            let (previous, overlapped) = &described[i - 1];
            return Err(error(format!(
                "tensors overlap: {name} has data_offsets [{start}, {end}], {previous} has {:?}",
                <[usize; 2]>::from(overlapped.data_offsets)
            )));
        }
        if start > end_of_previous {
            return Err(error(format!(
                "data bytes {end_of_previous} to {start} belong to no tensor, expected tensor {name} to start at {end_of_previous}"
            )));
        }
        end_of_previous = end;
    }
    if end_of_previous != data_bytes {
        let expected = data_start as u128 + end_of_previous as u128;
        let what =
            if data_bytes < end_of_previous { "it is truncated" } else { "bytes at its end belong to no tensor" };
        return Err(error(format!("file has {} bytes, expected {expected} from its header: {what}", file.len())));
    }
    let entries = described.into_iter().map(|(name, tensor)| {
        let (start, end) = tensor.data_offsets;
        Entry { name, dtype: tensor.dtype, shape: tensor.shape, range: data_start + start..data_start + end }
    });
    Ok((data_start, entries.collect()))
}

/// Bytes that dtype and shape ask for.
fn byte_size(tensor: &Described) -> std::result::Result<usize, String> {
    let (dtype, shape) = (tensor.dtype, &tensor.shape);
    let bits = shape
        .iter()
        .try_fold(dtype.bitsize(), |size, &dim| size.checked_mul(dim))
        .ok_or_else(|| format!("has shape {shape:?}, whose size in {dtype} overflows"))?;
    if bits % 8 != 0 {
        return Err(format!("has shape {shape:?}, which in {dtype} is not a whole number of bytes"));
    }
    Ok(bits / 8)
}
