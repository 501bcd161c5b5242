"""A recording as one HTML page, which loads nothing but the WAV file beside it. It can be read on a telephone, and
follows the light or dark setting of its reader."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from urllib.parse import quote

from telephony_tts.recording.replay import STAGES, Replay, Span

_LEAST_PX, _MOST_PX, _PX_PER_S = 600, 24_000, 60
_MOST_BINS = 6_000
_MOST_WORDS = 5_000
_LANES = (
    ("caller", 0, 70), ("speaking", 74, 10), ("heard", 92, 70), ("sentences", 168, 26), ("words", 198, 20),
    ("marks", 222, 14), ("axis", 240, 18),
)  # fmt: skip
"""(name, top, height) in pixels."""
_HEIGHT = 260

_STYLE = """
:root{color-scheme:light dark;--back:#fff;--ink:#1b1f24;--soft:#667;--line:#d5d9e0;--card:#f5f6f8;--caller:#0b7285;
--ours:#5f3dc4;--box:#e5dbff;--stop:#c92a2a;--pause:#f59f00;--mark:#2b8a3e}
@media (prefers-color-scheme:dark){:root{--back:#14171c;--ink:#e6e8eb;--soft:#98a1ae;--line:#333a45;--card:#1c2128;
--caller:#3bc9db;--ours:#b197fc;--box:#3b2f63;--stop:#ff8787;--pause:#ffd43b;--mark:#69db7c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--back);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.3rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.5rem 0 .4rem}
p{margin:.2rem 0}.soft{color:var(--soft)}.problem{color:var(--stop)}
audio{width:100%;margin:.8rem 0}
.strip{overflow-x:auto;border:1px solid var(--line);border-radius:8px;background:var(--card)}
svg{display:block}svg text{font:11px system-ui,sans-serif;fill:var(--ink)}
.wave-caller{fill:var(--caller)}.wave-heard{fill:var(--ours)}
.track{fill:var(--line);opacity:.35}.speaking{fill:var(--caller);opacity:.7}
.sentence{fill:var(--box);stroke:var(--ours);stroke-width:.5}.paused{fill:var(--pause);opacity:.3}
.hole{fill:var(--stop);opacity:.25}.tick-mark{stroke:var(--mark)}.tick-interruption,.tick-error{stroke:var(--stop)}
.tick-dtmf{stroke:var(--caller)}.grid{stroke:var(--line)}svg .time{fill:var(--soft)}
#now{stroke:var(--ink);stroke-width:1.5}
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem .25rem 0;text-align:left;vertical-align:top}
th{font-weight:600;color:var(--soft)}td{border-top:1px solid var(--line)}
.what{overflow-wrap:anywhere;white-space:pre-wrap}.num{white-space:nowrap;font-variant-numeric:tabular-nums}
.num button{all:unset;cursor:pointer;color:var(--caller)}
.bars{display:flex;height:1rem;min-width:8rem;margin:.25rem 0;background:var(--card)}
.bars i{display:block;min-width:1px}.s0{background:var(--caller)}.s1{background:var(--pause)}.s2{background:var(--ours)}
.s3{background:var(--mark)}.key i{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 .8rem}
@media (max-width:40rem){body{padding:.6rem}td,th{padding-right:.3rem;font-size:.9rem}}
"""

_SCRIPT = """
(function(){
var sound=document.querySelector('audio'),strip=document.querySelector('.strip'),now=document.getElementById('now');
if(!sound||!strip||!now){return}
var perMs=parseFloat(strip.dataset.px);
function show(){var x=sound.currentTime*1000*perMs;now.setAttribute('x1',x);now.setAttribute('x2',x);
if(!sound.paused&&(x<strip.scrollLeft||x>strip.scrollLeft+strip.clientWidth-40)){strip.scrollLeft=x-60}}
function follow(){show();if(!sound.paused){requestAnimationFrame(follow)}}
sound.addEventListener('play',follow);sound.addEventListener('seeked',show);
strip.querySelector('svg').addEventListener('click',function(e){
sound.currentTime=(e.clientX-this.getBoundingClientRect().left)/perMs/1000;show()});
document.querySelectorAll('button[data-ms]').forEach(function(b){b.addEventListener('click',function(){
sound.currentTime=b.dataset.ms/1000;show();sound.play()})});
})();
"""


def page(replay: Replay) -> str:
    """The page. Everything that comes from the recording is escaped."""
    title = escape(str(replay.about.get("call", replay.name)))
    parts = [
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
        "<meta name=\"referrer\" content=\"no-referrer\">",
        f"<title>Call {title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Call {title}</h1>",
        f"<p class=\"soft\">{escape(_begun(replay))}{_seconds(replay.length_ms)} long, "
        f"ended by {escape(str(replay.about.get('ended') or 'nothing known'))}</p>",
        *(f"<p class=\"problem\">{escape(problem)}</p>" for problem in replay.problems),
    ]
    if replay.wav is not None:
        parts.append(f"<audio controls preload=\"metadata\" src=\"{escape(quote(replay.wav))}\"></audio>")
    else:
        parts.append("<p class=\"problem\">The WAV file is not beside the timeline.</p>")
    parts += [
        "<p class=\"soft\">Above the caller, below what the caller heard. Tap to play from there.</p>",
        _strip(replay), _latencies(replay), _story(replay),
        f"<script>{_SCRIPT}</script></body></html>\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _begun(replay: Replay) -> str:
    begun_s = replay.about.get("unix_s")
    if not isinstance(begun_s, int | float) or not 0 <= begun_s < 1e11:
        return ""
    return f"{datetime.fromtimestamp(begun_s, UTC):%Y-%m-%d %H:%M:%S} UTC, "


def _seconds(ms: float) -> str:
    return f"{int(ms // 60_000)}:{ms % 60_000 / 1000:04.1f}"


# ------------------------------------------------------------------------ the strip


def _strip(replay: Replay) -> str:
    width = max(_LEAST_PX, min(_MOST_PX, round(replay.length_ms * _PX_PER_S / 1000)))
    per_ms = width / replay.length_ms
    lanes = {name: (top, height) for name, top, height in _LANES}
    out = [
        f"<div class=\"strip\" data-px=\"{per_ms:.9f}\"><svg width=\"{width}\" height=\"{_HEIGHT}\" "
        f"viewBox=\"0 0 {width} {_HEIGHT}\" role=\"img\" aria-label=\"the call in time\">"
    ]

    def box(lane: str, span: Span, kind: str, *, whole: bool = False) -> str:
        top, height = (0, _HEIGHT - 20) if whole else lanes[lane]
        label = f"<title>{escape(span.label)}</title>" if span.label else ""
        return (
            f"<rect class=\"{kind}\" x=\"{span.start_ms * per_ms:.1f}\" y=\"{top}\" "
            f"width=\"{max(1.0, (span.end_ms - span.start_ms) * per_ms):.1f}\" height=\"{height}\">{label}</rect>"
        )

    out += _axis(replay, per_ms)
    out += [box("caller", span, "paused", whole=True) for span in replay.lanes["paused"]]
    out += [box("caller", span, "hole", whole=True) for span in replay.lanes["holes"]]
    for channel, lane in ((0, "caller"), (1, "heard")):
        out += [box(lane, span, "track") for span in replay.lanes[lane]]
        out.append(_wave(replay, channel, *lanes[lane], width, f"wave-{lane}"))
    out += [box("speaking", span, "speaking") for span in replay.lanes["speaking"]]
    for lane, kind in (("sentences", "sentence"), ("words", "")):
        top, height = lanes[lane]
        for span in replay.lanes[lane][:_MOST_WORDS]:
            room_px = (span.end_ms - span.start_ms) * per_ms
            if kind:
                out.append(box(lane, span, kind))
            n_chars = int(room_px / 6)
            if n_chars >= 2:
                shown = span.label if len(span.label) <= n_chars else span.label[: n_chars - 1] + "…"
                at = f"x=\"{span.start_ms * per_ms + 3:.1f}\" y=\"{top + height - 8}\""
                out.append(f"<text {at}>{escape(shown)}</text>")
    for tick in replay.ticks:
        x, top = tick.ms * per_ms, 0 if tick.kind in ("interruption", "error") else lanes["marks"][0]
        out.append(
            f"<line class=\"tick-{escape(tick.kind)}\" x1=\"{x:.1f}\" x2=\"{x:.1f}\" y1=\"{top}\" y2=\"236\">"
            f"<title>{escape(tick.label)}</title></line>"
            f"<text x=\"{x + 2:.1f}\" y=\"234\">{escape(tick.label[:24])}</text>"
        )
    out.append(f"<line id=\"now\" x1=\"0\" x2=\"0\" y1=\"0\" y2=\"{_HEIGHT}\"/></svg></div>")
    return "".join(out)


def _axis(replay: Replay, per_ms: float) -> list[str]:
    step_s = next((step for step in (1, 2, 5, 10, 30, 60, 300) if step * 1000 * per_ms >= 50), 600)
    out = []
    for second in range(0, int(replay.length_ms / 1000) + 1, step_s):
        x = second * 1000 * per_ms
        out.append(f"<line class=\"grid\" x1=\"{x:.1f}\" x2=\"{x:.1f}\" y1=\"0\" y2=\"240\"/>")
        out.append(f"<text class=\"time\" x=\"{x + 2:.1f}\" y=\"255\">{second // 60}:{second % 60:02d}</text>")
    return out


def _wave(replay: Replay, channel: int, top: int, height: int, width: int, kind: str) -> str:
    n_bins = min(_MOST_BINS, width)
    step, middle = width / n_bins, top + height / 2
    halves = [max(0.5, float(peak) ** 0.6 * height / 2) for peak in replay.peaks(channel, n_bins)]
    above = " ".join(f"{n * step:.1f},{middle - half:.1f}" for n, half in enumerate(halves))
    below = " ".join(f"{n * step:.1f},{middle + halves[n]:.1f}" for n in range(n_bins - 1, -1, -1))
    return f"<polygon class=\"{kind}\" points=\"{above} {below}\"/>"


# ----------------------------------------------------------------------- the tables


def _latencies(replay: Replay) -> str:
    shown = [turn for turn in replay.turns if turn.stages or turn.first_audio_ms is not None]
    if not shown:
        return ""
    names = [name for _, name in STAGES]
    key = "".join(f"<i class=\"s{n}\"></i>{escape(name)}" for n, name in enumerate(names))
    widest = max([sum(turn.stages.values()) for turn in shown] + [1.0])
    rows = []
    for turn in shown:
        bars = "".join(
            f"<i class=\"s{n}\" style=\"width:{100 * turn.stages.get(stage, 0) / widest:.2f}%\" "
            f"title=\"{escape(name)}: {turn.stages.get(stage, 0):.1f} ms\"></i>"
            for n, (stage, name) in enumerate(STAGES)
        )
        first = "" if turn.first_audio_ms is None else f"{turn.first_audio_ms:.1f} ms"
        rows.append(
            f"<tr><td class=\"num\">{_link(turn.begin_ms)}</td><td class=\"what\">{escape(turn.turn)}</td>"
            f"<td><div class=\"bars\">{bars}</div></td><td class=\"num\">{first}</td>"
            f"<td>{escape(turn.outcome)}</td></tr>"
        )
    return (
        f"<h2>Latency of each turn</h2><p class=\"key soft\">{key}</p><table><tr><th>at</th><th>turn</th>"
        f"<th>first sentence, up to {widest:.0f} ms</th><th>first audio</th><th>end</th></tr>{''.join(rows)}</table>"
    )


def _story(replay: Replay) -> str:
    rows = [
        f"<tr><td class=\"num\">{_link(ms)}</td><td>{escape(who)}</td><td class=\"what\">{escape(what)}</td></tr>"
        for ms, who, what in replay.story
    ]
    return f"<h2>What happened</h2><table><tr><th>at</th><th>who</th><th>what</th></tr>{''.join(rows)}</table>"


def _link(ms: float | None) -> str:
    if ms is None:
        return ""
    return f"<button type=\"button\" data-ms=\"{max(0.0, ms):.0f}\">{_seconds(max(0.0, ms))}</button>"
