"""Writes tokenizer_expected.json: what the Python `tokenizers` package makes of many texts.

    pip install tokenizers==0.23.3 && python make_tokenizer_expected.py
"""

import json
import pathlib
import random

import tokenizers

HERE = pathlib.Path(__file__).parent
PIECES = [
    " ", "  ", "    ", "\n", "\r\n", "\r", "\t", "\n\n", " \n", "\u00a0", "\u3000", "\u2028", "\ufeff", "\0", "\x7f",
    "fn", "main", "let mut", "impl<'a>", "::", "->", "=>", "'static", "it's", "I'LL", "0", "12", "1234567", "0xFF", "1_000",
    "//", "///", "#[", "]", "{}", "();", "\"", "\\", "_", "é", "e\u0301", "ß", "Ωmega", "Привет", "नमस्ते", "안녕", "こんにちは",
    "漢字", "中", "𠀀", "🦀", "👩‍👩‍👧", "🇺🇳", "\u200d", "x²", "½", "Ⅷ", "٣", "ﬁ", "ǅ", "<|bos|>", "<|eos|>", "<|mask|>", "<|bos", "|>",
]
HAND = [
    "", " ", "fn main() {\n    println!(\"hello\");\n}\n", "<|bos|>", "<|bos|><|bos|>x", " <|bos|> fn", "a<|pad|>b",
    "汉字与 code 混排。", "   leading", "trailing   ", "\n\n\n", "\r\n\r\n", "a\r\nb", "        }\n\n        else",
]


def main():
    tokenizer = tokenizers.Tokenizer.from_file(str(HERE / "../../tiny/target/tokenizer.json"))
    rng = random.Random(7)
    texts = HAND + ["".join(rng.choices(PIECES, k=rng.randint(1, 14))) for _ in range(400)]
    cases = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
    note = f"made by make_tokenizer_expected.py with tokenizers {tokenizers.__version__} from tiny/target/tokenizer.json"
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    out = HERE / "tokenizer_expected.json"
    out.write_text(f'{{"note": {json.dumps(note)},\n"cases": [\n{lines}\n]}}\n')


main()
