//! How the `decoder` of tokenizer.json turns one token's text into bytes. Decoding a text is concatenation of these bytes.

use tokenizers::{Decoder, DecoderWrapper};

/// The decoder of a tokenizer.json, reduced to what it does to a single token.
///
/// Steps that look at the whole text (`Fuse`, and the `Strip` that takes away the space SentencePiece puts before a text)
/// have no bytes of their own: a generated continuation must keep its leading space.
pub(super) struct TokenDecoder(Vec<Step>);

enum Step {
    /// Characters stand for bytes (GPT-2's table); ends the chain.
    ByteLevel,
    /// `<0x0A>` stands for a byte; ends the chain for such tokens.
    ByteFallback,
    /// This character stands for a space.
    Metaspace(char),
    /// Any other step that maps text to text.
    Text(DecoderWrapper),
}

impl TokenDecoder {
    /// Takes over `decoder`; the error says which part has no meaning for single tokens.
    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let Some(decoder) = decoder else {
            return Err("decoder is null, expected ByteLevel, ByteFallback or Metaspace".to_owned());
        };
        let mut steps = Vec::new();
        let mut fused = false;
        let parts = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            single => std::slice::from_ref(single),
        };
        for part in parts {
            steps.push(match part {
                DecoderWrapper::Fuse(_) => {
                    fused = true;
                    continue;
                }
                DecoderWrapper::Strip(_) if fused => continue,
                DecoderWrapper::ByteLevel(_) if !fused => Step::ByteLevel,
                DecoderWrapper::ByteFallback(_) if !fused => Step::ByteFallback,
                DecoderWrapper::Metaspace(metaspace) if !fused => Step::Metaspace(metaspace.get_replacement()),
                DecoderWrapper::Replace(_) if !fused => Step::Text(part.clone()),
                other => {
                    let name = serde_json::to_value(other).ok();
                    let name = name.as_ref().and_then(|v| v["type"].as_str()).unwrap_or("of unknown type");
                    let place = if fused { " after Fuse" } else { "" };
                    return Err(format!(
                        "decoder {name}{place} is not supported, expected ByteLevel, or a sequence of Replace, \
                         ByteFallback, Metaspace, Fuse and Strip in that order"
                    ));
                }
            });
        }
        Ok(Self(steps))
    }

    /// Tokens are written in GPT-2's table, so that added tokens, which are not, are taken literally.
    pub(super) fn is_byte_level(&self) -> bool {
        self.0.iter().any(|step| matches!(step, Step::ByteLevel))
    }

    /// Exact bytes of a token of the model's vocabulary.
    pub(super) fn bytes(&self, token: &str) -> Result<Vec<u8>, String> {
        let mut text = token.to_owned();
        for step in &self.0 {
            match step {
                Step::ByteLevel => {
                    let bytes: Option<Vec<u8>> = text.chars().map(byte_of).collect();
                    return Ok(bytes.unwrap_or_else(|| text.into_bytes()));
                }
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        return Ok(vec![byte]);
                    }
                }
                Step::Metaspace(space) => text = text.replace(*space, " "),
                Step::Text(decoder) => {
                    let parts = decoder.decode_chain(vec![text]).map_err(|e| e.to_string())?;
                    text = parts.concat();
                }
            }
        }
        Ok(text.into_bytes())
    }
}

/// The byte that a character stands for in GPT-2's table: printable Latin-1 stands for itself, the 68 other bytes,
/// ascending, are U+0100 and up.
fn byte_of(symbol: char) -> Option<u8> {
    let byte = match u32::from(symbol) {
        own @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => own,
        low @ 0x100..=0x120 => low - 0x100,
        high @ 0x121..=0x142 => high - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The byte of a token such as `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    fn decoder(json: &str) -> Result<TokenDecoder, String> {
        TokenDecoder::new(Some(&serde_json::from_str(json).unwrap()))
    }

    #[test]
    fn the_byte_table_is_gpt2s() {
        let alphabet: BTreeSet<char> = ByteLevel::alphabet().into_iter().collect();
        let known: BTreeSet<char> = ('\0'..='\u{FFFF}').filter(|&c| byte_of(c).is_some()).collect();
        assert_eq!(known, alphabet);
        let bytes: BTreeSet<u8> = known.iter().filter_map(|&c| byte_of(c)).collect();
        assert_eq!(bytes.len(), 256);
        for text in ["\0\t\n\r ~\u{7F}", "\u{80}\u{A0}\u{AD}é", "漢字🦀"] {
            let symbols: Vec<char> =
                text.bytes().map(|b| *known.iter().find(|&&c| byte_of(c) == Some(b)).unwrap()).collect();
            let token = String::from_iter(symbols);
            assert_eq!(ByteLevel::default().decode_chain(vec![token]).unwrap().concat(), text);
        }
    }

    #[test]
    fn sentencepiece_tokens_become_spaces_and_bytes() {
        let llama = decoder(
            r#"{"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}"#,
        )
        .unwrap();
        let metaspace = decoder(r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}"#).unwrap();
        let cases: [(&TokenDecoder, &str, &[u8]); 6] = [
            (&llama, "▁the", b" the"),
            (&llama, "<0x0A>", b"\n"),
            (&llama, "<0xE6>", &[0xE6]),
            (&llama, "<0x0>", b"<0x0>"),
            (&metaspace, "▁▁x", b"  x"),
            (&metaspace, "<0x0A>", b"<0x0A>"),
        ];
        for (decoder, token, bytes) in cases {
            assert_eq!(decoder.bytes(token).unwrap(), bytes, "{token}");
        }
    }

    #[test]
    fn a_decoder_without_bytes_a_token_is_named() {
        let cases = [
            (r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###, "decoder WordPiece is not supported"),
            (
                r#"{"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}"#,
                "decoder ByteFallback after Fuse is not supported",
            ),
        ];
        for (json, message) in cases {
            let error = decoder(json).err().unwrap();
            assert!(error.contains(message), "{error}");
        }
        assert!(TokenDecoder::new(None).err().unwrap().contains("decoder is null"));
    }
}
