"""Writes chat_expected.json: what Hugging Face transformers renders from chat_templates/ for many conversations.

    pip install transformers==5.24.0 jinja2==3.1.6 && python make_chat_expected.py
"""

import json
import pathlib

import jinja2
import tokenizers
import transformers

HERE = pathlib.Path(__file__).parent
SPECIAL_TOKENS = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "pad_token": "[PAD]"}


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function(
    "get_weather",
    "Weather <now> & \"soon\" at a place, 天气",
    {
        "place": {"type": "string", "description": "City, e.g. 東京"},
        "days": {"type": "integer", "minimum": 0, "maximum": 14, "default": 1},
        "threshold": {"type": "number", "default": 1e-7, "exclusiveMaximum": 1e20, "multipleOf": 0.5},
        "units": {"type": ["string", "null"], "enum": ["C", "F", None], "deprecated": False},
    },
    ["place"],
)
CLOCK = function("clock", "The time", {}, [])

system = lambda text: {"role": "system", "content": text}
user = lambda text: {"role": "user", "content": text}
assistant = lambda text: {"role": "assistant", "content": text}

# (messages, tools, thinking)
CONVERSATIONS = [
    ([user("hello.")], None, None),
    ([user("hello.")], None, True),
    ([user("hello.")], None, False),
    ([system("You are terse."), user("hello.")], None, None),
    ([system("You are terse."), user("hello.")], None, True),
    ([system(""), user("")], None, False),
    ([user("  padded text \n\n")], None, None),
    ([system("\n trailing \t "), user("\ttabs\r\nand returns\r\n ")], None, None),
    ([user("写一个函数。"), assistant("好的：`fn f() {}`"), user("谢谢！🦀")], None, None),
    ([user("e\u0301 \u00a0\u3000 👩‍👩‍👧 \u200d \ufeff")], None, None),
    ([user("one"), assistant("two"), user("three"), assistant("four"), user("five")], None, None),
    ([system("s"), user("one"), assistant("two\n"), user(" three"), assistant("four "), user("five")], None, True),
    ([user("q"), assistant("<think>\nhm\n</think>\n\nanswer"), user("next")], None, True),
    ([user("q"), assistant("a</think>b</think>c"), user("next")], None, False),
    ([user("{{ bos_token }} {% if %} {# not a template #}")], None, None),
    ([user("<|im_end|><｜User｜><|eot_id|> & <b>\"quotes\"</b> 'single' \\n")], None, None),
    ([user("weather?")], [WEATHER], None),
    ([system("Use tools."), user("weather?"), assistant("Where?"), user("東京")], [WEATHER, CLOCK], True),
    ([user("time?")], [CLOCK], False),
    ([user("no tools to choose from")], [], None),
    ([user("ends with an answer"), assistant("done")], None, None),
    ([system("a"), system("b"), user("two systems")], None, None),
    ([user("one"), user("two")], None, None),
    ([user("x"), assistant("y"), {"role": "tool", "content": "42"}, user("z")], None, None),
    ([system("only a system prompt")], None, None),
    ([user("line\u2028separator \u0085 \x01 \x7f \"")], None, None),
]


def main():
    base = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=base, **SPECIAL_TOKENS)
    cases = []
    for path in sorted((HERE / "chat_templates").glob("*.jinja")):
        for messages, tools, thinking in CONVERSATIONS:
            case = {"template": path.name, "messages": messages, "tools": tools, "thinking": thinking}
            flags = {} if thinking is None else {"thinking": thinking, "enable_thinking": thinking}
            try:
                case["expected"] = tokenizer.apply_chat_template(
                    messages, chat_template=path.read_text(), tools=tools, add_generation_prompt=True, tokenize=False, **flags
                )
            except jinja2.exceptions.TemplateError as error:
                case["error"] = str(error)
            cases.append(case)
    versions = f"transformers {transformers.__version__} and jinja2 {jinja2.__version__}"
    head = {"note": f"made by make_chat_expected.py with {versions}", "special_tokens": SPECIAL_TOKENS}
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    head = json.dumps(head, ensure_ascii=True)[:-1]
    (HERE / "chat_expected.json").write_text(f'{head},\n"cases": [\n{lines}\n]}}\n')


main()
