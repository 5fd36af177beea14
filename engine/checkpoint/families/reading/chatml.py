"""ChatML: the chat format of Qwen's models and InternVL's, for checkpoints without a template."""

_SYSTEM = """\
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- set audios = namespace(count=0) %}
"""
_TURNS = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'text' %}
{{- part.text }}
MEDIA_PARTS
{%- else %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN2_VL_TEMPLATE = _SYSTEM + _TURNS.replace(
    "MEDIA_PARTS",
    """\
{%- elif part.type == 'image' %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}""",
)
"""Qwen2-VL's variant of ChatML."""

QWEN2_AUDIO_TEMPLATE = _SYSTEM + _TURNS.replace(
    "MEDIA_PARTS",
    """\
{%- elif part.type == 'audio' %}
{%- set audios.count = audios.count + 1 %}
{{- 'Audio ' + audios.count|string + ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' }}""",
)
"""Qwen2-Audio's variant, which numbers audio inputs."""

INTERNVL_TEMPLATE = _TURNS.replace(
    "MEDIA_PARTS",
    """\
{%- elif part.type == 'image' %}
{{- '<IMG_CONTEXT>\\n' }}
{%- elif part.type == 'video' %}
{{- '<video>\\n' }}""",
)
"""InternVL's variant: no system message of its own, and a newline after each image and video."""

_WITH_TOOLS = """\
{%- set seen = namespace(images=0, videos=0) %}
{%- macro text_of(content) %}
{%- if content is string %}
{{- content }}
{%- else %}
{%- for part in content or [] %}
{%- if part.type == 'text' %}
{{- part.text }}
{%- elif part.type == 'image' %}
{%- set seen.images = seen.images + 1 %}
{{- ('Picture ' ~ seen.images ~ ': ' if add_vision_id else '') + '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}
{%- set seen.videos = seen.videos + 1 %}
{{- ('Video ' ~ seen.videos ~ ': ' if add_vision_id else '') + '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- else %}
{{- raise_exception('this model does not support content of type ' + part.type) }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- set first_is_system = messages[0].role == 'system' %}
{%- set default = DEFAULT_SYSTEM %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if first_is_system %}
{{- text_of(messages[0].content) + '\\n\\n' }}
{%- elif default %}
{{- default + '\\n\\n' }}
{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n' + (tool | tojson) }}
{%- endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif first_is_system %}
{{- '<|im_start|>system\\n' + text_of(messages[0].content) + '<|im_end|>\\n' }}
{%- elif default %}
{{- '<|im_start|>system\\n' + default + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
{{- '<|im_start|>user' }}
{%- endif %}
{{- '\\n<tool_response>\\n' + text_of(message.content) + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- elif not (loop.first and first_is_system) %}
{%- set text = text_of(message.content) %}
{{- '<|im_start|>' + message.role + '\\n' + text }}
{%- for call in message.tool_calls or [] %}
{%- if text or not loop.first %}
{{- '\\n' }}
{%- endif %}
{%- set call = call.function or call %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Tools in the format of Hermes, as in Qwen2.5 and Qwen3."""

QWEN3_VL_TEMPLATE = _WITH_TOOLS.replace("DEFAULT_SYSTEM", "''")
"""Qwen3-VL's variant: no system message of its own."""

QWEN2_VL_TOOL_TEMPLATE = _WITH_TOOLS.replace("DEFAULT_SYSTEM", "'You are a helpful assistant.'")
"""Qwen2-VL's and Qwen2.5-VL's variant with tools, which their published templates ignore, although the language models
inside know those of Qwen2.5. Without tools it renders the same as the published ones."""
