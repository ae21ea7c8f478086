//! Prompts: the bundled texts, files of one's own, and how they become token ids of the lengths asked for.

use std::path::{Path, PathBuf};

use coppice_model::tokenizer::Tokenizer;
use serde::Deserialize;

use super::matrix::{Case, PromptLength};
use crate::error::{Error, Result};

/// A few lines of code each, from crates that the embedded model was not trained on.
const HELD_OUT: (&str, &str) = ("embedded:held-out.jsonl", include_str!("../../prompts/held-out.jsonl"));
/// Whole files of code and prose from the same crates.
const DOCUMENTS: (&str, &str) = ("embedded:documents.jsonl", include_str!("../../prompts/documents.jsonl"));

/// Prompts of a fixed length where no number is asked for: enough to wake different experts, few enough for long ones.
const PROMPTS_OF_A_LENGTH: usize = 4;

/// One prompt as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its name.
    pub id: String,
    /// Context that is filled first, then the prompt proper.
    pub tokens: Vec<u32>,
}

/// Texts that prompts are made of.
#[derive(Debug)]
pub struct Library {
    /// Taken whole.
    whole: Vec<Tokenised>,
    /// Taken in runs of a given length.
    long: Vec<Tokenised>,
    whole_path: PathBuf,
    long_path: PathBuf,
    bos: Option<u32>,
}

#[derive(Debug, Clone)]
struct Tokenised {
    id: String,
    /// Without BOS.
    tokens: Vec<u32>,
}

/// A line of a prompt file.
#[derive(Debug, Deserialize)]
struct Line {
    id: Option<String>,
    text: Option<String>,
    tokens: Option<Vec<u32>>,
}

impl Library {
    /// The bundled texts.
    ///
    /// # Errors
    /// The tokenizer cannot express them.
    pub fn bundled(tokenizer: &Tokenizer) -> Result<Self> {
        let read = |(name, content)| parse(Path::new(name), content, Some(tokenizer));
        let bos = begins_with(tokenizer)?;
        let (whole_path, long_path) = (HELD_OUT.0.into(), DOCUMENTS.0.into());
        Ok(Self { whole: read(HELD_OUT)?, long: read(DOCUMENTS)?, whole_path, long_path, bos })
    }

    /// The texts of a file: one JSON object a line with `text`, or with `tokens` for a model without a tokenizer, and
    /// `id` where it should have a name.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Content`] with the line that is not as expected.
    pub fn file(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let content = std::fs::read_to_string(path).map_err(|source| Error::File {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
        let whole = parse(path, &content, tokenizer)?;
        if whole.is_empty() {
            return Err(content_error(path, "there is no prompt, expected one JSON object a line".to_owned()));
        }
        let bos = tokenizer.map(begins_with).transpose()?.flatten();
        Ok(Self { long: whole.clone(), whole, whole_path: path.to_owned(), long_path: path.to_owned(), bos })
    }

    /// The prompts of a case: `count` of them, or as many as suit the case. BOS, where the model wants it, counts as a token.
    ///
    /// # Errors
    /// [`Error::Request`] if the texts are too short or too few.
    pub fn prompts(&self, case: &Case, count: Option<usize>) -> Result<Vec<Prompt>> {
        match case.prompt {
            PromptLength::Whole => {
                let (most, path) = (self.whole.len(), self.whole_path.display());
                let count = count.unwrap_or(most);
                if count > most {
                    return Err(Error::Request(format!("--count is {count}, but {path} has {most} prompts")));
                }
                (0..count).map(|i| self.whole_prompt(i, case.depth)).collect()
            }
            PromptLength::Tokens(length) => {
                let count = count.unwrap_or(PROMPTS_OF_A_LENGTH.min(self.long.len()));
                (0..count).map(|i| self.cut(i * self.long.len() / count, case.depth + length)).collect()
            }
        }
    }

    fn whole_prompt(&self, index: usize, depth: usize) -> Result<Prompt> {
        let Tokenised { id, tokens } = &self.whole[index];
        let mut prompt = match depth {
            0 => Prompt { id: String::new(), tokens: self.bos.into_iter().collect() },
            _ => self.cut(index % self.long.len(), depth)?,
        };
        prompt.id.clone_from(id);
        prompt.tokens.extend(tokens);
        if prompt.tokens.is_empty() {
            return Err(Error::Request(format!("prompt {id} of {} has no tokens", self.whole_path.display())));
        }
        Ok(prompt)
    }

    /// `length` tokens from the start of a text on, going on with the texts after it.
    fn cut(&self, start: usize, length: usize) -> Result<Prompt> {
        let (before, from) = self.long.split_at(start);
        let mut tokens: Vec<u32> = self.bos.into_iter().collect();
        tokens
            .extend(from.iter().chain(before).flat_map(|text| &text.tokens).take(length.saturating_sub(tokens.len())));
        if tokens.len() < length {
            let (found, path) = (tokens.len(), self.long_path.display());
            return Err(Error::Request(format!(
                "{path} has {found} tokens, expected at least {length} for -p and --depth"
            )));
        }
        tokens.truncate(length);
        Ok(Prompt { id: self.long[start].id.clone(), tokens })
    }
}

/// BOS, if the model wants raw text to begin with it.
fn begins_with(tokenizer: &Tokenizer) -> Result<Option<u32>> {
    let first = tokenizer.encode_raw("x")?.ids.first().copied();
    Ok(tokenizer.bos_id().filter(|bos| first == Some(*bos)))
}

fn parse(path: &Path, content: &str, tokenizer: Option<&Tokenizer>) -> Result<Vec<Tokenised>> {
    let lines = content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            let number = index + 1;
            let line: Line = serde_json::from_str(line).map_err(|error| {
                content_error(path, format!("line {number}: expected a JSON object with `text`: {error}"))
            })?;
            let id = line.id.unwrap_or_else(|| format!("line {number}"));
            let tokens = match (line.tokens, line.text, tokenizer) {
                (Some(tokens), None, _) => tokens,
                // As a template's output: what follows a BOS that is there already.
                (None, Some(text), Some(tokenizer)) => tokenizer.encode_chat(&text)?,
                (None, Some(_), None) => {
                    let message = "has `text`, but the model has no tokenizer: give `tokens`, an array of ids";
                    return Err(content_error(path, format!("line {number} {message}")));
                }
                (None, None, _) | (Some(_), Some(_), _) => {
                    return Err(content_error(path, format!("line {number}: expected one of `text` and `tokens`")));
                }
            };
            Ok(Tokenised { id, tokens })
        })
        .collect()
}

fn content_error(path: &Path, message: String) -> Error {
    Error::Content { path: path.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(texts: &[&[u32]], bos: Option<u32>) -> Library {
        let named = |(i, tokens): (usize, &&[u32])| Tokenised { id: format!("t{i}"), tokens: tokens.to_vec() };
        let whole: Vec<_> = texts.iter().enumerate().map(named).collect();
        Library { long: whole.clone(), whole, whole_path: "f".into(), long_path: "f".into(), bos }
    }

    fn case(prompt: PromptLength, depth: usize) -> Case {
        Case { prompt, depth, max_tokens: 1, temperature: 0.0 }
    }

    #[test]
    fn prompts_have_exactly_the_tokens_asked_for() {
        let library = library(&[&[1, 2], &[3], &[4, 5, 6]], Some(9));
        let tokens = |prompt, depth, count| -> Vec<Vec<u32>> {
            let prompts = library.prompts(&case(prompt, depth), count).unwrap();
            prompts.into_iter().map(|prompt| prompt.tokens).collect()
        };
        let whole = PromptLength::Whole;
        assert_eq!(tokens(whole, 0, None), [vec![9, 1, 2], vec![9, 3], vec![9, 4, 5, 6]]);
        assert_eq!(tokens(whole, 3, Some(1)), [vec![9, 1, 2, 1, 2]]);
        assert_eq!(tokens(PromptLength::Tokens(4), 0, Some(3)), [[9, 1, 2, 3], [9, 3, 4, 5], [9, 4, 5, 6]]);
        assert_eq!(tokens(PromptLength::Tokens(2), 4, Some(1)), [[9, 1, 2, 3, 4, 5]]);
        assert_eq!(tokens(PromptLength::Tokens(1), 0, Some(1)), [[9]]);
        let error = |prompt, count| library.prompts(&case(prompt, 0), count).unwrap_err().to_string();
        assert_eq!(error(PromptLength::Tokens(8), None), "f has 7 tokens, expected at least 8 for -p and --depth");
        assert_eq!(error(whole, Some(4)), "--count is 4, but f has 3 prompts");
    }

    #[test]
    fn lines_that_are_no_prompts_are_named() {
        let cases = [
            ("{\"tokens\": [1]}\n\n{", "line 3: expected a JSON object with `text`"),
            ("{\"id\": \"a\"}", "line 1: expected one of `text` and `tokens`"),
            ("{\"text\": \"a\", \"tokens\": [1]}", "line 1: expected one of `text` and `tokens`"),
            ("{\"text\": \"a\"}", "line 1 has `text`, but the model has no tokenizer"),
        ];
        for (content, want) in cases {
            let message = parse(Path::new("p.jsonl"), content, None).unwrap_err().to_string();
            assert!(message.starts_with("p.jsonl: ") && message.contains(want), "{content}: {message}");
        }
    }

    #[cfg(feature = "embedded-model")]
    #[test]
    fn the_bundled_texts_are_many_and_long_enough() {
        let tokenizer = Tokenizer::load(&coppice_model::Source::EmbeddedTarget).unwrap().unwrap();
        let library = Library::bundled(&tokenizer).unwrap();
        let held_out = library.prompts(&case(PromptLength::Whole, 0), None).unwrap();
        assert!(held_out.len() >= 24, "{}", held_out.len());
        for prompt in &held_out {
            assert!(prompt.tokens[0] == 0 && (16..400).contains(&prompt.tokens.len()), "{prompt:?}");
        }
        let long = library.prompts(&case(PromptLength::Tokens(65_536), 0), None).unwrap();
        assert_eq!(long.len(), PROMPTS_OF_A_LENGTH);
    }
}
