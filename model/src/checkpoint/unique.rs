//! JSON objects whose keys must not repeat, as safetensors headers and indices require; serde's maps keep the last.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// Tensor name to `V`. A repeated name is an error, errors of values carry their name, and `__metadata__`, where
/// safetensors keeps free text, is skipped.
#[derive(Debug)]
pub(super) struct ByTensor<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for ByTensor<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ByTensorVisitor(PhantomData))
    }
}

struct ByTensorVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for ByTensorVisitor<V> {
    type Value = ByTensor<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object with a key for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(name) = access.next_key::<String>()? {
            if name == "__metadata__" {
                access.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = access.next_value().map_err(|error| A::Error::custom(format!("tensor {name}: {error}")))?;
            if map.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor {name} is listed twice")));
            }
            map.insert(name, value);
        }
        Ok(ByTensor(map))
    }
}
