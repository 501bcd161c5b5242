"""What language models write that is not for the ear: stage directions, citations, formulas in LaTeX, arrows.

The patterns are parts of the one of `markdown`, without groups. Their flags are VERBOSE and MULTILINE.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from telephony_tts.text.patterns import FRACTION_DENOMINATORS

# ------------------------------------------------------------------------------ stage directions

_DIRECTIONS = (
    ("[laughter]", "laugh(?:s|ing)|chuckl(?:es|ing)|giggl(?:es|ing)", "laugh|laughter|chuckle|giggle",
     "大笑|轻笑|笑声?|哈哈|爆笑|苦笑|웃음|웃으며"),
    ("[sigh]", "sigh(?:s|ing)", "sigh", "叹气|叹息|ため息|한숨"),
    ("[cough]", "cough(?:s|ing)|clears(?:[ ](?:her|his|their|my))?[ ]throat", "cough", "咳嗽|清嗓子|咳払い|기침"),
    ("[quick_breath]", "gasps", "gasp", "倒吸一口气"),
    ("[breath]", "takes[ ]a[ ](?:deep[ ])?breath|(?:in|ex)hales|breathes", "breath|inhale|exhale",
     "深呼吸|吸气|심호흡"),
    ("",
     "smil(?:es|ing)|nod(?:s|ding)|winks|shrugs|pauses|whisper(?:s|ing)|hums|yawns|groans|grins|sniff(?:s|les)|sobs",
     "smile|nod|wink|shrug|pause|beat|silence|music|applause|noise|lipsmack|typing",
     "停顿|沉默|微笑|点头|拍手|침묵|박수"),
)  # fmt: skip
"""(the token of CosyVoice2 for it, the verb, the noun, words of other languages)."""
_ADVERB = "(?:[ ][a-z]+ly)?"
_DOES = "|".join(does for _, does, _, _ in _DIRECTIONS)
_HEARD = "|".join(heard for _, _, heard, _ in _DIRECTIONS)
_OTHER = "|".join(other for _, _, _, other in _DIRECTIONS)
DIRECTION = (
    rf"\[[ ]?(?i:(?:{_DOES}|{_HEARD}){_ADVERB}|{_OTHER})[ ]?\]"
    rf"|[(（【](?i:(?:{_DOES}|pause|beat){_ADVERB}|{_OTHER})[)）】]"
    rf"|(?<![*A-Za-z0-9])\*(?i:(?:{_DOES}){_ADVERB}|{_OTHER})\*(?![*A-Za-z0-9])"
)
_DIRECTION = re.compile(DIRECTION, re.VERBOSE)
_TOKENS = tuple(
    (token, re.compile(rf"\W?(?:{does}|{heard}|{other})(?![a-z])", re.IGNORECASE | re.VERBOSE))
    for token, does, heard, other in _DIRECTIONS
)


def token_of(text: str, control: Collection[str]) -> str | None:
    """The token among `control` for `text`, if it is a stage direction that an engine can follow. None otherwise."""
    if not _DIRECTION.fullmatch(text):
        return None
    found = next((token for token, pattern in _TOKENS if pattern.match(text.replace("[ ", "["))), None)
    return found if found in control else None


# -------------------------------------------------------------------------------------- citations

CITATION = r"【[^【】\n]{0,80}†[^【】\n]{0,80}】|(?:\[[0-9]{1,3}\]){1,9}(?![\w(\[])"
_BEFORE_KEY = re.compile(
    r"(?:\b(?:press|hit|dial|key|enter|option|number|select|choose|type|say|see|item|step|or|and|to|is|in|of)"
    r"|按|拨|键|选|选择|输入|第|或|和|を|は|또는|및)[ ]?\Z", re.IGNORECASE,
)  # fmt: skip


def is_citation(text: str, start: int, end: int) -> bool:
    """Whether the numbers in brackets are notes: "five days [1][2].", but not "[1] is the first key"."""
    written, before, after = text[start:end], text[max(0, start - 24) : start], text[end : end + 1]
    if written[0] == "【" or written.count("[") > 1:
        return True
    if not before.strip() or _BEFORE_KEY.search(before):
        return False
    if not before[-1].isspace():
        return before[-1].isascii() or not after or not (after.isspace() or after.isalnum())
    return (not after or after in ".!?。！？\n") and text.count("[") == 1  # not one of a list of keys


# --------------------------------------------------------------------------------------- formulas

FORMULA = r"""\$\$[^$\n]{1,300}\$\$
    | \$(?=[^$\n]{0,200}[\\^_{])[^$\s](?:[^$\n]{0,200}[^$\s])?\$(?![A-Za-z0-9])
    | \$[A-Za-z](?![A-Za-z])[^$\nA-Za-z]{0,40}(?:[A-Za-z](?![A-Za-z])[^$\nA-Za-z]{0,40}){0,20}(?<!\s)\$(?![A-Za-z0-9])
    | \\\((?:[^\n\\]|\\[^\n)]){1,300}\\\) | \\\[(?:[^\n\\]|\\[^\n\]]){1,300}\\\]
    | \\[dt]?frac\{[^{}\n]{1,60}\}\{[^{}\n]{1,60}\} | \\sqrt\{[^{}\n]{1,60}\}
    | \\(?:times|cdot|div|pm|leq?|geq?|neq?|approx|infty|pi)\b
    | (?<=[A-Za-z0-9)])\^\{?(?:[23](?![0-9])|\\circ)\}?"""
_SIGNS = {
    "times": "×", "cdot": "×", "div": "÷", "pm": "±", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠",
    "neq": "≠", "approx": "≈", "infty": "∞", "left": "", "right": "", "quad": " ", "to": "→", "rightarrow": "→",
}  # fmt: skip
_NESTED = re.compile(
    r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}|\\sqrt\{([^{}]*)\}|\\(?:text|mathrm|mathbf)\{([^{}]*)\}|\{([^{}\\]*)\}"
)
_DELIMITER = re.compile(r"\$+|\\[()\[\],;!]")
_COMMAND = re.compile(r"\\([A-Za-z]+)")


def plain_formula(text: str) -> str:
    r"""LaTeX as signs that every language reads: "$n^2$" is "n²", r"\frac{1}{2}" is "1/2". Never longer."""
    text = _DELIMITER.sub("", text).replace(r"^{\circ}", "°").replace(r"^\circ", "°")
    for _ in range(4):
        text = _NESTED.sub(_unnested, text)
    text = _COMMAND.sub(lambda found: _SIGNS.get(found[1], found[1]), text)
    text = re.sub(r"\^([23])(?![0-9])", lambda found: "²³"[int(found[1]) - 2], text)
    return re.sub(r"[{}\\]", "", text.replace("_", " "))


def _unnested(found: re.Match[str]) -> str:
    upper, lower, root, *others = found.groups()
    if upper is not None:
        is_fraction = upper.isdigit() and lower.isdigit() and int(lower) in FRACTION_DENOMINATORS
        said = f"{upper}/{lower}" if is_fraction else f"{upper} ÷ {lower}"
        return f" {said}" if found.string[found.start() - 1 : found.start()].isdigit() else said
    return f"√{root}" if root is not None else next(other for other in others if other is not None)


UP_OR_DOWN = "(?<![0-9%])[↑↓](?=[0-9])"
"""More or less than before: "↑5%". A language may have a word for it."""
ARROW = (
    rf"(?:(?<=[\w)\]\"'”’ ])[-=]{{1,2}}>(?=[ ]?\w)"
    rf"|(?!{UP_OR_DOWN})[\u2190-\u21ff\u27f0-\u27ff\u2900-\u297f\u27a1\u2b05-\u2b11]\ufe0f?)"
    r"[ ]?"
)
"""Between two parts of a line it is a pause."""
