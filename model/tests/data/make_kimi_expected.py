"""Writes kimi_ranks.model and kimi_expected.json: what PyPI's tiktoken makes of many texts with Kimi's pattern.

    pip install tiktoken==0.14.0 tokenizers==0.23.3 Django==5.2.8 && python make_kimi_expected.py

Kimi's own 163,584 ranks are 2.6 MB of another licence, so a byte-level BPE is trained here on the translations and sources
that Django ships (BSD licence), and filled up to Kimi's size with tokens that no text has: ids of special tokens are Kimi's.
"""

import base64
import json
import pathlib
import random
import re
import struct

import django
import tiktoken
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
RANKS, TRAINED = 163_584, 4_000
NAMED = {  # offset after the ranks: (name, special), as Kimi-K2.6 has them
    0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|im_end|>", True), 3: ("<|im_user|>", True),
    4: ("<|im_assistant|>", True), 6: ("<|start_header_id|>", True), 7: ("<|end_header_id|>", True), 9: ("[EOT]", True),
    10: ("<|im_system|>", True), 11: ("<|tool_calls_section_begin|>", False), 12: ("<|tool_calls_section_end|>", False),
    13: ("<|tool_call_begin|>", False), 14: ("<|tool_call_argument_begin|>", False), 15: ("<|tool_call_end|>", False),
    17: ("<|im_middle|>", True), 18: ("<|media_begin|>", True), 19: ("<|media_content|>", True),
    20: ("<|media_end|>", True), 21: ("<|media_pad|>", True), 22: ("<think>", False), 23: ("</think>", False),
    254: ("[UNK]", True), 255: ("[PAD]", True),
}
LOCALES = "ar bg bn de el en es fa fr he hi hy ja ka ko ky ml mn my pl ru ta te th tr uk ur vi zh_Hans zh_Hant".split()
TURNS = [
    [("user", "hello.")],
    [("system", "You are terse."), ("user", "写一个函数。"), ("assistant", "<think>短い方が良い。</think>fn f() {}"), ("user", "谢谢！🦀")],
    [("user", "天气怎么样?\n\n"), ("assistant",
      "<think></think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
      '{"city": "北京", "days": 3}<|tool_call_end|><|tool_calls_section_end|>'), ("tool", "## Return of functions.get_weather:0\n晴 21°C")],
]


def messages(locale):
    path = pathlib.Path(django.__file__).parent / f"conf/locale/{locale}/LC_MESSAGES/django.po"
    found = re.findall(r'^(?:msgstr|msgid)(?:\[\d\])? "(.+)"$|^"(.+)"$', path.read_text(), re.M)
    return [(a or b).replace("\\n", "\n").replace('\\"', '"') for a, b in found if ":" not in (a or b)[:20]]


def sources():
    root = pathlib.Path(django.__file__).parent
    names = ["contrib/admin/options.py", "contrib/admin/static/admin/js/core.js", "contrib/admin/static/admin/js/inlines.js",
             "contrib/admin/static/admin/css/base.css", "contrib/admin/templates/admin/change_list.html", "db/models/query.py",
             "contrib/gis/gdal/prototypes/ds.py", "utils/text.py"]
    return [(root / name).read_text() for name in names]


CODE = [
    "fn main() {\n    let x: Vec<&'static str> = vec![\"a\"; 3];\n    println!(\"{x:?}\");\n}\n",
    "#include <stdio.h>\r\nint main(void)\r\n{\r\n\treturn printf(\"%d\\n\", 0xFFu << 2);\r\n}\r\n",
    "func (s *Server) Serve(ctx context.Context) error {\n\tfor i := range 10 {\n\t\tgo s.handle(i)\n\t}\n\treturn nil\n}\n",
    "SELECT id, COUNT(*) AS n FROM t WHERE name LIKE '%x' GROUP BY id HAVING n >= 10 ORDER BY 2 DESC;",
    "main :: IO ()\nmain = mapM_ print . filter even $ [1 .. 10]  -- haskell\n",
    "public static <T extends Comparable<? super T>> void sort(List<T> list) { /* … */ }",
    "#!/bin/bash\nfor f in *.{c,h}; do [[ -f $f ]] && grep -nE '^#if(n)?def' \"$f\" | wc -l; done\n",
    "const f = async (x) => { await fetch(`/api/${x}?q=${encodeURIComponent('é')}`); };\n",
    "{\"a\": [1, 2.5e-10, null, true], \"b\": {\"嵌套\": \"值\"}}",
    "\\begin{equation}\n  \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt\\pi}{2}\n\\end{equation}",
    "def f(x: int) -> int:\n    \"\"\"返回 x 的平方。\"\"\"\n    return x**2  # square\n",
    "变量 = 1\nprint(f\"{变量=}\")\n", "a\t= b\n\tc   \n   \n\n\nd", "        }\n\n        else {\n",
]
PIECES = [
    " ", "  ", "    ", "\n", "\r\n", "\r", "\t", "\n\n", " \n", "\u00a0", "\u3000", "\u2028", "\u2029", "\u0085", "\u200b", "\ufeff",
    "\0", "\x0b", "\x0c", "\x1c", "\x1f", "\x7f", "\u180e", "\u1680", "\u202f", "fn", "main", "let mut", "HTTPServer", "camelCase", "XMLHttp", "McDonald",
    "it's", "I'LL", "We'Ve", "don'T", "'s", "'S", "'ſ", "'re", "'rE", "'m", "'d", "'llama", "’s", "x'", "''", "0", "12", "345", "1234567", "0xFF",
    "1_000", "3.14", "//", "::", "=>", "!=", "#[", "]", "{}", "();", "\"", "\\", "_", "...", "…", "—", "¿", "é", "e\u0301", "\u0301", "a\u0308\u0323", "ß",
    "Ωmega", "Привет", "МИР", "नमस्ते", "안녕", "한국어", "こんにちは", "カタカナ", "ー", "กำลัง", "שלום", "مرحبا", "ქართული", "հայ", "漢字", "中", "文件名", "𠀀", "𪛖", "〇", "々", "〻", "㐀",
    "⺀", "⼀", "豈", "、", "。", "「", "」", "Ｆｕｌｌ", "１２", "🦀", "👩‍👩‍👧", "👍🏽", "🇺🇳", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "\u200d", "\ufe0f", "x²", "½", "Ⅷ", "٣", "१२३४", "ﬁ", "ǅ", "ǈa", "ʰ", "ªº",
    "ˈ", "ᾈ", "ẞ", "İ", "ı", "ſ", "K", "\U00016ff0", "\U00016fe2", "\U00016fe3", "\u3021",
]


def ranks():
    """Tokens by rank: 256 bytes, trained ones, and then bytes that are no text."""
    bpe = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=TRAINED, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    han = [text for locale in ("zh_Hans", "zh_Hant", "ja") for text in messages(locale)]
    runs = [c * n for c in " -=#*\t\n" for n in (2, 4, 8, 16)] * 40
    bpe.train_from_iterator([t for l in LOCALES for t in messages(l)] + 3 * han + sources() + CODE + runs, trainer)
    characters = {chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    others = [b for b in range(256) if chr(b) not in characters]
    byte_of = {**{c: ord(c) for c in characters}, **{chr(256 + i): b for i, b in enumerate(others)}}
    by_id = sorted(bpe.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(byte_of[c] for c in text) for text, _ in by_id]
    assert len(tokens) == TRAINED and {bytes([b]) for b in range(256)} == set(tokens[:256])
    return tokens


def texts():
    rng = random.Random(11)
    out = ["", *CODE, *PIECES]
    out += ["".join(rng.choices(PIECES, k=rng.randint(2, 9))) for _ in range(900)]
    names = [name for name, _ in NAMED.values()] + ["<|reserved_token_163600|>", "<|reserved_token_163837|>", "<|im_", "|>", "[BOS", "<|reserved_token_1|>"]
    out += ["".join(rng.choices(names + PIECES[:60], k=rng.randint(1, 6))) for _ in range(150)]
    for locale in LOCALES:
        out += [text[:60] for text in rng.sample(messages(locale), 12)]
    code = "".join(sources())
    for _ in range(150):
        at = rng.randrange(len(code))
        out.append(code[at : at + rng.randint(10, 70)])
    zh, en = messages("zh_Hans"), messages("en")
    for _ in range(150):  # Han and Latin without spaces
        out.append("".join(rng.choice(s)[: rng.randint(1, 8)].replace(" ", "") for s in (zh, en, zh, en)))
    for _ in range(60):
        out.append(rng.choice(" \n\t-=a漢é#.0") * rng.randint(2, 60) + rng.choice(PIECES))
    scalars = [*range(0xD800), *range(0xE000, 0x110000)]
    ranges = [(0, 0x250), (0x250, 0x3000), (0x2E80, 0xA000), (0xA000, 0xD800), (0xE000, 0x1_0000), (0x1_0000, 0x2_0000), (0x1F000, 0x1FB00), (0x2_0000, 0x3_2400)]
    for _ in range(350):
        pool = rng.choice(ranges) if rng.random() < 0.8 else None
        pick = (lambda: rng.randrange(*pool)) if pool else (lambda: rng.choice(scalars))
        out.append("".join(map(chr, (pick() for _ in range(rng.randint(2, 10))))))
    return list(dict.fromkeys(out))


LONG = [  # texts as [unit, times]
    [[" ", 100_000], ["x", 1]], [["a", 100_000]], [["ab ", 60_000]], [["\n", 30_000], ["b", 1]], [["漢", 60_000]], [["é", 25_001], [" ", 3]],
    [["a", 24_998], ["[BOS]", 1], ["b", 10]], [["a", 24_998], ["<|reserved_token_163600|>", 1], ["b", 10]],
    [["-", 20_000], ["[EOS]", 1], ["-", 20_000]], [["-", 20_000], ["<|reserved_token_163600|>", 1], ["-", 20_000]],
    [[" ", 24_999], ["\x1f", 1], ["\t", 2], ["x", 1]], [["x ", 199_999], ["   y", 2]], [["=", 150_000]], [["1", 26_000]], [["Aa", 20_000]], [["A", 26_000], ["a", 1]],
]


def windows(text):
    """The cuts of Kimi's TikTokenTokenizer.encode: blocks of 400,000 characters, runs of 25,000."""
    for block in (text[i : i + 400_000] for i in range(0, len(text), 400_000)):
        start = run = 0
        for i, c in enumerate(block):
            run = run + 1 if i and c.isspace() == block[i - 1].isspace() else 1
            if run > 25_000:
                yield block[start:i]
                start, run = i, 1
        yield block[start:]


def digest(ids):
    """FNV-1a over whole ids."""
    state = 0xCBF29CE484222325
    for i in ids:
        state = (state ^ i) * 0x100000001B3 % 2**64
    return len(ids), f"{state:016x}"


def main():
    trained = ranks()
    filler = [b"\xff" + struct.pack(">I", rank) for rank in range(TRAINED, RANKS)]
    names = {NAMED.get(i, (f"<|reserved_token_{RANKS + i}|>",))[0]: RANKS + i for i in range(256)}
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks={t: r for r, t in enumerate(trained + filler)}, special_tokens=names)
    # What transformers' slow tokenizers do first: take the tokens of added_tokens_decoder out of the text.
    added = {name: RANKS + i for i, (name, _) in NAMED.items()}
    split = re.compile("(" + "|".join(map(re.escape, sorted(added, key=len, reverse=True))) + ")")

    def encode(text):
        ids = []
        for part in filter(None, split.split(text)):
            ids += [added[part]] if part in added else [i for w in windows(part) for i in encoding.encode(w, allowed_special="all")]
        assert encoding.decode_bytes(ids) == text.encode()
        return ids

    def chat(turns):
        text = "".join(f"<|im_{'system' if role == 'tool' else role}|>{role}<|im_middle|>{content}<|im_end|>" for role, content in turns)
        return "[BOS]" + text + "<|im_assistant|>assistant<|im_middle|><think>"

    cases, chats = [[t, encode(t)] for t in texts()], [[chat(t), encode(chat(t))] for t in TURNS]
    rendered = [c.get("expected") for c in json.loads((HERE / "chat_expected.json").read_text())["cases"] if c["template"] == "kimi_k2.jinja"]
    templates = [text and encode(text) for text in rendered]
    assert all(ids == encoding.encode(text, allowed_special="all") for text, ids in cases + chats)
    long = [[parts, *digest(encode("".join(unit * times for unit, times in parts)))] for parts in LONG]
    decoder = {str(RANKS + i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}
               for i, (name, special) in NAMED.items()}
    config = {"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    lines = lambda rows: "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "\n]"
    note = f"made by make_kimi_expected.py with tiktoken {tiktoken.__version__}; texts from Django {django.__version__} under its BSD licence"
    (HERE / "kimi_expected.json").write_text(
        f'{{"note": {json.dumps(note)},\n"config": {json.dumps(config)},\n"cases": {lines(cases)},\n"chats": {lines(chats)},\n"templates": {lines(templates)},\n"long": {lines(long)}}}\n')
    (HERE / "kimi_ranks.model").write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for r, t in enumerate(trained)))


main()
