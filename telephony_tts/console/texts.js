// The words of the pages, in English and Chinese.

const TEXTS = {
  skip: ["Skip to the page", "跳到正文"],
  pages: ["Pages", "页面"],
  say: ["Say it", "说话"],
  calls: ["Calls", "通话"],
  voices: ["Voices", "音色"],
  compare: ["Compare", "对比"],
  well: ["Is it well?", "运行状况"],
  theme: ["Light or dark", "浅色或深色"],
  text: ["Text", "文本"],
  example: [
    "Hello, this is your bank. Your balance is $42.50 today, and the next payment is due on March 3rd.",
    "您好，这里是您的银行。您今天的余额是四十二元五角，下一笔付款在三月三日。",
  ],
  speak: ["Speak", "播放"],
  interrupt: ["Interrupt", "打断"],
  pause: ["Pause", "暂停"],
  resume: ["Resume", "继续"],
  mark: ["Mark", "标记"],
  microphone: ["Microphone", "麦克风"],
  level: ["Level of the microphone", "麦克风音量"],
  keys: ["[Enter] speaks, [Space] interrupts, [P] pauses, [/] goes back to the text. With the microphone on, your voice interrupts.",
    "[Enter] 播放，[Space] 打断，[P] 暂停，[/] 回到文本。打开麦克风后，您的声音也能打断。"],
  options: ["Voice and options", "音色与选项"],
  engine: ["Engine", "引擎"],
  anyEngine: ["any", "任意"],
  voice: ["Voice", "音色"],
  serverVoice: ["the server's", "服务器默认"],
  lang: ["Language", "语言"],
  auto: ["by the text", "按文本判断"],
  speed: ["Speed", "语速"],
  seed: ["Seed", "随机种子"],
  instruct: ["Instruction", "指令"],
  quality: ["Sound", "音质"],
  telephone: ["Telephone, 8 kHz", "电话 8 kHz"],
  wide: ["Wide band, 16 kHz", "宽带 16 kHz"],
  own: ["The engine's own, 24 kHz", "引擎原声 24 kHz"],
  how: ["Text comes", "文本方式"],
  whole: ["all at once", "一次给出"],
  bot: ["as a bot writes it", "像机器人那样逐字"],
  tokens: ["Tokens per second", "每秒词元数"],
  stall: ["Pause at each comma, ms", "逗号处停顿（毫秒）"],
  connecting: ["connecting …", "正在连接…"],
  waiting: ["waiting for the first sound …", "等待首个声音…"],
  firstSound: ["first sound after {0} ms", "{0} 毫秒后出声"],
  listening: ["listening to the microphone", "正在听麦克风"],
  lost: ["The connection to the server was lost{0}. Connecting again …", "与服务器的连接已断开{0}。正在重新连接…"],
  noAnswer: ["it does not answer", "服务器无响应"],
  ended: ["The server has ended the call{0}. Speak again to begin another one.", "服务器已结束通话{0}。再次播放即可开始新的通话。"],
  back: ["The connection to the server was lost{0}. It is back.", "与服务器的连接曾断开{0}，现已恢复。"],
  offline: ["no network", "无网络"],
  waitsForSound: ["waiting for more sound …", "等待后续声音…"],
  waitsForNetwork: ["no network: waiting …", "无网络，等待中…"],
  goesOn: ["goes on after a gap of {0} ms", "中断 {0} 毫秒后继续"],
  noMicrophone: ["The microphone cannot be used: {0}", "无法使用麦克风：{0}"],
  done: ["heard to the end", "已全部听完"],
  cleared: ["interrupted after {0} s", "{0} 秒后被打断"],
  interrupted: ["interrupted", "被打断"],
  byVoice: ["by your voice", "被您的声音"],
  paused: ["paused", "已暂停"],
  speaking: ["speaking", "正在说"],
  failed: ["failed", "失败"],
  lostTurn: ["lost", "连接中断"],
  waterfall: ["Where the time went", "时间去哪儿了"],
  saveJson: ["Save JSON", "保存 JSON"],
  savePng: ["Save PNG", "保存 PNG"],
  figures: ["Figures", "数据"],
  figure: ["Figure, ms", "指标（毫秒）"],
  thisTurn: ["this turn", "本轮"],
  ofTurns: ["turns: {0}", "轮数：{0}"],
  happened: ["What happened", "发生了什么"],
  stageText: ["text complete → sentence", "文本 → 句子"],
  stageQueue: ["queue", "排队"],
  stageEngine: ["engine → first audio", "引擎 → 首个音频"],
  stageFrame: ["first frame sent", "首帧发出"],
  stageServer: ["the server, to its first frame", "服务器到首帧"],
  stageCut: ["unfinished when it ended", "结束时尚未完成"],
  stageNetwork: ["network and browser", "网络与浏览器"],
  stageDecode: ["decoding", "解码"],
  stageOutput: ["output", "输出"],
  stageSilence: ["silence before the sound", "出声前的静音"],
  networkFirst: ["first audio in the page", "页面收到首个音频"],
  audibleFirst: ["first sound heard", "听到首个声音"],
  early: ["frames, how early each was", "各帧提前多少"],
  heardFor: ["heard", "听到的时长"],
  endedAfter: ["text → interrupted or failed", "文本 → 被打断或失败"],
  toSilence: ["key → silence", "按键 → 静音"],
  gaps: ["gaps", "断音次数"],
  gapTime: ["silence in the gaps", "断音总时长"],
  lateFrames: ["late frames", "迟到的帧"],
  underruns: ["gaps of the engine", "引擎断供"],
  examined: ["What is installed and set", "安装与设置"],
  again: ["Look again", "重新检查"],
  examining: ["Looking …", "正在检查…"],
  good: ["well", "正常"],
  ready: ["ready", "就绪"],
  loading: ["loading, {0} s", "加载中，{0} 秒"],
  queued: ["waits", "等待"],
  notResponding: ["does not respond", "无响应"],
  draining: ["shutting down", "正在停机"],
  starting: ["starting", "启动中"],
  unreachable: ["not reachable", "无法连接"],
  cannotReach: ["the server cannot be reached", "无法连接服务器"],
  noAnswerFor: ["the server did not answer for {0} s", "服务器在 {0} 秒内没有响应"],
  refusedConnection: ["the server refused the connection", "服务器拒绝了连接"],
  needsToken: ["needs a token", "需要令牌"],
  load: ["load", "负载"],
  inQueue: ["in the queue", "排队"],
  running: ["speaking", "正在合成"],
  nVoices: ["voices", "音色数"],
  part: ["Part", "部件"],
  state: ["State", "状态"],
  detail: ["Detail", "说明"],
  ok: ["ok", "正常"],
  optional: ["not installed", "未安装"],
  missing: ["missing", "缺失"],
  broken: ["broken", "损坏"],
  warning: ["warning", "警告"],
  tokenTitle: ["This server asks for a token", "此服务器需要令牌"],
  token: ["Token", "令牌"],
  tokenHint: ["It stays in this tab until you close it, and is never part of an address.", "令牌只保存在本标签页，关闭即清除，不会出现在网址中。"],
  enter: ["Enter", "进入"],
};

// What the codes of the server's errors mean, in Chinese.
const PROBLEMS = {
  unauthorized: "令牌缺失或不正确", origin: "不允许来自此网页的请求", not_supervisor: "需要主管令牌", not_yours: "属于其他密钥",
  key_limit: "已达到此密钥的限额", bad_request: "请求有误", bad_field: "设置有误", bad_option: "选项有误", bad_config: "内容有误",
  not_found: "未找到", method_not_allowed: "不允许此操作", unknown_voice: "没有此音色", model_not_found: "没有此模型",
  voice_exists: "已有同名音色", voice_fixed: "此音色不能更改", unsupported_text: "此音色不能朗读这种语言或文字",
  unknown_sound: "没有此声音", bad_sound: "无法播放此声音", bad_audio: "无法使用此音频", text_too_long: "文本过长",
  body_too_large: "上传内容过大", body_timeout: "上传超时", encoded_body: "不接受压缩的内容", lexicon_changed: "词典已被他人更改",
  queue_full: "排队已满", rate_limited: "发送过快", busy: "服务器繁忙，请稍后再试", closing: "正在关闭", idle: "空闲过久，通话已结束",
  call_taken: "此通话已有机器人", call_over: "通话已结束", no_media: "没有收到媒体连接", turn_exists: "上一轮尚未结束",
  turn_closed: "这一轮的文本已经结束", unknown_turn: "没有这一轮", too_many_marks: "尚未播放的标记过多",
  format_unavailable: "服务器未安装此格式所需的组件", engine_unavailable: "引擎未安装或不可用", engine_failed: "引擎出错",
  internal: "服务器内部错误",
};

// An error of the server in the page's language. The server's own words stay: they have the details.
export const problemText = ({ code, message }) =>
  language === "zh" && PROBLEMS[code] ? [PROBLEMS[code], message].filter(Boolean).join("：") : message;

const LANGUAGES = ["en", "zh"];
let language = localStorage.getItem("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");

export const currentLanguage = () => language;

// The text of a key. {0} stands for a value.
export function t(key, ...values) {
  const text = TEXTS[key]?.[LANGUAGES.indexOf(language)] ?? TEXTS[key]?.[0] ?? key;
  return text.replace(/\{(\d)\}/g, (_, n) => values[n] ?? "");
}

export function addTexts(more) {
  Object.assign(TEXTS, more);
}

// Write the texts of all elements below `inside` that name one.
export function translate(inside = document) {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const each of inside.querySelectorAll("[data-t]")) {
    const parts = t(each.dataset.t).split(/\[(.+?)\]/);
    each.replaceChildren(...parts.map((part, n) => (n % 2 ? Object.assign(document.createElement("kbd"), { textContent: part }) : part)));
  }
  for (const each of inside.querySelectorAll("[data-t-label]")) each.setAttribute("aria-label", t(each.dataset.tLabel));
}

export function useLanguage(chosen) {
  language = LANGUAGES.includes(chosen) ? chosen : "en";
  localStorage.setItem("language", language);
  translate();
  dispatchEvent(new Event("language"));
}
