"""ChatML: the chat format of Qwen's models, for checkpoints without a template."""

_CHATML = """\
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- set audios = namespace(count=0) %}
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

QWEN2_VL_TEMPLATE = _CHATML.replace(
    "MEDIA_PARTS",
    """\
{%- elif part.type == 'image' %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}""",
)
"""Qwen2-VL's variant of ChatML."""

QWEN2_AUDIO_TEMPLATE = _CHATML.replace(
    "MEDIA_PARTS",
    """\
{%- elif part.type == 'audio' %}
{%- set audios.count = audios.count + 1 %}
{{- 'Audio ' + audios.count|string + ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' }}""",
)
"""Qwen2-Audio's variant, which numbers audio inputs."""
