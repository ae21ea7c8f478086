//! Looks tensors up by name, checks dtype and shape, and keeps count of what is missing and unused. Which tensors a model
//! has lives in `target` and `draft`.

use std::collections::HashSet;

use half::{bf16, f16};

use super::Binding;
use crate::checkpoint::{Checkpoint, Dtype, TensorInfo};
use crate::config::Quantization;
use crate::error::{Error, Result};
use crate::weight::{Slice, Storage, Weight};

/// Columns in a word of packed int4.
const COLUMNS_PER_WORD: usize = 8;

/// An expected size of an axis and the configuration keys it comes from.
#[derive(Clone, Copy)]
pub(super) struct Dim {
    pub size: usize,
    pub origin: &'static str,
}

/// Shorthand for a [`Dim`].
pub(super) const fn dim(size: usize, origin: &'static str) -> Dim {
    Dim { size, origin }
}

/// One pass over the tensors that a model needs. A missing tensor is noted and stands in as an empty one, so that
/// [`Binder::finish`] can name them all; what it stands in for never leaves this module.
pub(super) struct Binder<'a> {
    checkpoint: &'a Checkpoint,
    quantization: Quantization,
    /// Leads every name in the checkpoint.
    prefix: &'static str,
    used: HashSet<&'a str>,
    missing: Vec<String>,
}

impl<'a> Binder<'a> {
    /// `prefix` leads the checkpoint's names if it leads those of the decoder `layers`.
    pub fn new(checkpoint: &'a Checkpoint, quantization: Quantization, prefix: &'static str, layers: &str) -> Self {
        let is_prefixed = |name: &str| name.strip_prefix(prefix).is_some_and(|name| name.starts_with(layers));
        let prefix = if checkpoint.names().any(is_prefixed) { prefix } else { "" };
        Self { checkpoint, quantization, prefix, used: HashSet::new(), missing: Vec::new() }
    }

    /// The weight matrix `module.weight` in whichever stored type it has. `why` follows its name if it is missing.
    pub fn linear(&mut self, module: &str, rows: Dim, cols: Dim, why: &str) -> Result<Weight> {
        let name = format!("{}{module}.weight", self.prefix);
        let storage = match self.take(&name) {
            Some(tensor) => self.plain_or_fp8(&name, tensor, rows, cols)?,
            None => match self.take(&format!("{name}_packed")) {
                Some(packed) => self.int4(&name, packed, rows, cols)?,
                None => {
                    self.missing.push(format!("{name}{why}"));
                    Storage::F32(Slice::from_vec(Vec::new()))
                }
            },
        };
        Ok(Weight { name, rows: rows.size, cols: cols.size, storage })
    }

    /// [`Binder::linear`] expanded to f32.
    pub fn linear_f32(&mut self, module: &str, rows: Dim, cols: Dim) -> Result<Weight> {
        let weight = self.linear(module, rows, cols, "")?;
        if matches!(weight.storage, Storage::F32(_)) {
            return Ok(weight);
        }
        let mut values = vec![0.0; weight.rows * weight.cols];
        values.chunks_mut(weight.cols).enumerate().for_each(|(row, out)| weight.expand_row(row, out));
        Ok(Weight { storage: Storage::F32(Slice::from_vec(values)), ..weight })
    }

    /// The vector `name`, expanded to f32.
    pub fn vector(&mut self, name: &str, length: Dim) -> Result<Vec<f32>> {
        let name = format!("{}{name}", self.prefix);
        let Some(tensor) = self.take(&name) else {
            self.missing.push(name);
            return Ok(Vec::new());
        };
        expect_shape(&name, tensor, &[length.size], length.origin)?;
        match tensor.dtype {
            Dtype::F32 => Ok(elements::<f32>(&name, tensor)?.to_vec()),
            Dtype::BF16 => Ok(elements::<bf16>(&name, tensor)?.iter().map(|value| value.to_f32()).collect()),
            Dtype::F16 => Ok(elements::<f16>(&name, tensor)?.iter().map(|value| value.to_f32()).collect()),
            _ => Err(unexpected_dtype(&name, tensor, "F32, BF16 or F16")),
        }
    }

    /// `weights` with the names of tensors that were not asked for.
    ///
    /// # Errors
    /// Tensors are missing.
    pub fn finish<W>(self, weights: W) -> Result<Binding<W>> {
        let unused = self.checkpoint.names().filter(|name| !self.used.contains(name)).map(str::to_owned).collect();
        match self.missing.is_empty() {
            true => Ok(Binding { weights, unused }),
            false => {
                let path = self.checkpoint.path().to_owned();
                Err(Error::MissingTensors { path, missing: self.missing, unused })
            }
        }
    }

    /// The tensor of that full name, which counts as used from here on.
    fn take(&mut self, name: &str) -> Option<&'a TensorInfo> {
        let (name, tensor) = self.checkpoint.get_key_value(name)?;
        self.used.insert(name);
        Some(tensor)
    }

    /// The tensor `part` that `tensor`, being `stored` so, is useless without.
    fn take_part(&mut self, name: &str, tensor: &TensorInfo, stored: &str, part: &str) -> Result<&'a TensorInfo> {
        let missing = || tensor_error(name, tensor, format!("is {stored}, but {part} is missing: both are needed"));
        self.take(part).ok_or_else(missing)
    }

    fn plain_or_fp8(&mut self, name: &str, tensor: &'a TensorInfo, rows: Dim, cols: Dim) -> Result<Storage> {
        expect_matrix(name, tensor, rows, cols)?;
        let scale_name = format!("{name}_scale_inv");
        let storage = match tensor.dtype {
            Dtype::F8_E4M3 => return self.fp8(name, tensor, &scale_name, rows, cols),
            Dtype::F32 => Storage::F32(elements(name, tensor)?),
            Dtype::BF16 => Storage::Bf16(elements(name, tensor)?),
            Dtype::F16 => Storage::F16(elements(name, tensor)?),
            _ => return Err(unexpected_dtype(name, tensor, "F32, BF16, F16 or F8_E4M3")),
        };
        match self.checkpoint.get(&scale_name) {
            Some(_) => Err(unexpected_dtype(name, tensor, &format!("F8_E4M3 beside its scale {scale_name}"))),
            None => Ok(storage),
        }
    }

    fn fp8(&mut self, name: &str, tensor: &TensorInfo, scale_name: &str, rows: Dim, cols: Dim) -> Result<Storage> {
        let Quantization::Fp8Block(block) = self.quantization else {
            let message = "is F8_E4M3, but config.json has no fp8 quantization_config".into();
            return Err(tensor_error(name, tensor, message));
        };
        let scale = self.take_part(name, tensor, "F8_E4M3", scale_name)?;
        expect_dtype(scale_name, scale, Dtype::F32)?;
        let blocks = [rows.size.div_ceil(block[0]), cols.size.div_ceil(block[1])];
        let origin = format!("({} / {}) x ({} / {}), rounded up", rows.origin, block[0], cols.origin, block[1]);
        expect_shape(scale_name, scale, &blocks, &origin)?;
        Ok(Storage::Fp8Block { values: elements(name, tensor)?, scale_inv: elements(scale_name, scale)?, block })
    }

    /// `name` is the unpacked tensor's, to which the stored ones' names add.
    fn int4(&mut self, name: &str, packed: &TensorInfo, rows: Dim, cols: Dim) -> Result<Storage> {
        let [packed_name, scale_name, shape_name] = ["packed", "scale", "shape"].map(|part| format!("{name}_{part}"));
        let Quantization::Int4Group(group) = self.quantization else {
            let message = "is packed int4, but config.json has no pack-quantized quantization_config".into();
            return Err(tensor_error(&packed_name, packed, message));
        };
        let scale = self.take_part(&packed_name, packed, "packed int4", &scale_name)?;
        let shape = self.take_part(&packed_name, packed, "packed int4", &shape_name)?;
        let matrix = format!("{} x {}", rows.origin, cols.origin);
        expect_dtype(&shape_name, shape, Dtype::I64)?;
        expect_shape(&shape_name, shape, &[2], "rows and columns")?;
        let stated = elements::<i64>(&shape_name, shape)?;
        let expected = [rows.size, cols.size];
        if !stated.iter().map(|&size| usize::try_from(size)).eq(expected.map(Ok)) {
            let message = format!("holds {:?}, expected {expected:?} ({matrix})", &stated[..]);
            return Err(tensor_error(&shape_name, shape, message));
        }
        if !cols.size.is_multiple_of(group) {
            let (size, origin) = (cols.size, cols.origin);
            let message = format!(
                "is packed int4 of {size} columns ({origin}), expected a multiple of the group size {group} of config.json"
            );
            return Err(tensor_error(&packed_name, packed, message));
        }
        expect_dtype(&packed_name, packed, Dtype::I32)?;
        let words = [rows.size, cols.size / COLUMNS_PER_WORD];
        expect_shape(&packed_name, packed, &words, &format!("{matrix} / {COLUMNS_PER_WORD}"))?;
        expect_dtype(&scale_name, scale, Dtype::BF16)?;
        expect_shape(&scale_name, scale, &[rows.size, cols.size / group], &format!("{matrix} / {group}"))?;
        Ok(Storage::Int4Group { packed: elements(&packed_name, packed)?, scale: elements(&scale_name, scale)?, group })
    }
}

fn tensor_error(name: &str, tensor: &TensorInfo, message: String) -> Error {
    Error::Tensor { name: name.to_owned(), path: tensor.path().to_owned(), message }
}

fn unexpected_dtype(name: &str, tensor: &TensorInfo, expected: &str) -> Error {
    tensor_error(name, tensor, format!("has dtype {}, expected {expected}", tensor.dtype))
}

fn expect_dtype(name: &str, tensor: &TensorInfo, expected: Dtype) -> Result<()> {
    match tensor.dtype == expected {
        true => Ok(()),
        false => Err(unexpected_dtype(name, tensor, &expected.to_string())),
    }
}

fn expect_matrix(name: &str, tensor: &TensorInfo, rows: Dim, cols: Dim) -> Result<()> {
    expect_shape(name, tensor, &[rows.size, cols.size], &format!("{} x {}", rows.origin, cols.origin))
}

/// `origin` names the configuration keys that `expected` comes from.
fn expect_shape(name: &str, tensor: &TensorInfo, expected: &[usize], origin: &str) -> Result<()> {
    let found = &tensor.shape;
    if found == expected {
        return Ok(());
    }
    let transposed = if found.iter().rev().eq(expected) { ": it is transposed" } else { "" };
    let message = format!("has shape {found:?}, expected {expected:?} ({origin}){transposed}");
    Err(tensor_error(name, tensor, message))
}

/// The elements of a tensor whose dtype was checked.
fn elements<T: bytemuck::Pod + Send + Sync>(name: &str, tensor: &TensorInfo) -> Result<Slice<T>> {
    let bytes = tensor.bytes().len();
    tensor
        .slice()
        .ok_or_else(|| tensor_error(name, tensor, format!("has {bytes} bytes, which {} do not divide", size_of::<T>())))
}
