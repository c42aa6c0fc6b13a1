"""Chat templates that take tools and render calls, one of each format; a few lines each."""

from specstream.tools import Tool, Tools

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = Tool("get_weather", "The weather.", CITY)
NOW = Tool("now", "The time.")
TOOLS = Tools((WEATHER, NOW))

_HEAD = "{% if tools %}[{{ tools | map(attribute='function') | list | tojson }}]\n{% endif %}"
_TEXT = "{{ m.role }}: {{ m.content }}\n"


def _template(call: str, before: str = "", after: str = "") -> str:
    """A template whose calls are written by ``call``, in which ``f`` is the function."""
    calls = (
        "{% for c in m.tool_calls %}{% set f = c.function %}" + before + call + after + "{% endfor %}"
    )
    body = "{% if m.tool_calls %}{{ m.role }}: {{ m.content }}" + calls + "</s>\n"
    return (
        _HEAD + "{% for m in messages %}" + body + "{% else %}" + _TEXT + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )


_JSON = '{{ \'{"name": "\' + f.name + \'", "%s": \' }}{{ f.arguments | tojson }}{{ "}" }}'

HERMES = _template(_JSON % "arguments", "<tool_call>\n", "\n</tool_call>")
LLAMA = _template(_JSON % "parameters", "{# <|python_tag|> #}")
LLAMA_32 = _template(_JSON % "parameters")
MISTRAL = _template("[TOOL_CALLS][" + _JSON % "arguments" + "]")
MISTRAL_ARGS = _template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}")
PHI = _template("<|tool_call|>[" + _JSON % "arguments" + "]<|/tool_call|>")
QWEN_CODER = _template(
    "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
GLM = _template(
    "<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>"
)
UNKNOWN = _template("CALL {{ f.name }} WITH {{ f.arguments | tojson }}")
NO_TOOLS = "{% for m in messages %}" + _TEXT + "{% endfor %}"
ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}{% endfor %}"
)
"""Before another template: Llama 3's condition."""
