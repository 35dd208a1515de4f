r"""Ordinary text of many kinds, none of which may be changed on its way into a block (contract §4.7)."""

from typing import Final

ORDINARY: Final = {
    "english": (
        "He said: “This moment changes everything.” She didn't agree; it's just ‘shared memory’, isn't it? See the "
        "“current_time” field (human input, that is) – or don't… As of 10:30 we've 3 < 4 and 5 > 2, I <3 it. [1] [sic]"
    ),
    "speakers in prose": "The human: what a riddle. Only human, he said: nexus or not. To be human\nmeans: to doubt.",
    "chinese": (
        "他说：“今天天气很好。”我们去公园吧！《红楼梦》第一回：【甄士隐】梦幻识通灵……"
        "「你好」，『世界』。时间：10:30。〔注〕［一］人类：会思考的动物。"
    ),
    "japanese": "「吾輩は猫である。」名前：まだ無い。カタカナ：テスト・データ【重要】〔注〕ー長音：はい。",
    "korean": "안녕하세요: 오늘 날씨가 좋네요. [공지] 내일은 <휴무>입니다.",
    "persian": "می‌خواهم به خانه بروم؛ کتاب‌ها: سه جلد. «سلام»",
    "arabic": "مرحبا بالعالم: كيف حالك؟ [ملاحظة] هذا نصّ عاديّ.",
    "hindi": "नमस्ते दुनिया: दुःख और सुख। क्‍या हाल है? [टिप्पणी]",
    "russian": "Он сказал: «Привет, мир!» — и ушёл. Человек: звучит гордо. [прим. ред.]",
    "greek": "Είπε: «Γεια σου, κόσμε!» [σημ.]",
    "french": "Il dit : « Bonjour ! » – l'été, déjà vu, naïveté ; œuvre n° 5 : [ndlr]",
    "vietnamese": "Xin chào: hôm nay trời đẹp. Tiếng Việt có dấu [chú thích].",
    "thai": "สวัสดีชาวโลก: วันนี้อากาศดี [หมายเหตุ]",
    "emoji": "👨‍👩‍👧‍👦 ❤️ 👍🏽 🏳️‍🌈 🇨🇳🇺🇸 1️⃣ ☺︎ :-) <3 >:( [🎉] ℹ️: ✔️",
    "markdown": """# Title: with a colon

- [ ] buy milk
- [x] call *mum* [(notes)](https://example.org/a?b=[c]&d=<e>)
* **Note:** see [the guide][1], `code`, ~~old~~ and <https://example.org>

| name | value |
|:-----|------:|
| a    | `[b]` |

> quoted: text[^1]

[1]: https://example.org "A guide"
[^1]: A footnote.
![image](a.png)
""",
    "markdown headings": """# Folder notes and other habits
Useful Information
------------------
## Useful Information for hikers
## More useful information
### 3. Current TODO list, by week
## Agent Role Definitions
#### Notes on folders ####
##### TODO
###### Current list
####### Folder Notes
#
## ##
##### ## Folder Notes
Read "## Folder Notes" first; then come back. # Useful Information
Useful Information: see below. Folder Notes #
#useful #information #todolist, C# and F# are languages, issue #12, PR #7 by agent #3
""",
    "chinese markdown": """# 项目说明

## 1、安装与运行（Useful Information）

先装好依赖，再运行。

## 文件夹笔记 Folder Notes
""",
    "equals signs": """Title
=====
Task context
============
=== RUN   TestTaskContext
=== RUN   TestCurrentInput/empty
=== PAUSE TestX
=== CONT  TestX
= TASK CONTEXT =
== Current inputs ==
== The current input ==
=== TASK CONTEXT
CURRENT INPUT ===
==== 3 passed, 1 failed in 0.31s ====
===== test session starts =====
<<<<<<< HEAD
=======
>>>>>>> task-context
==Phrack Inc.== Volume == 0x0b ==
a == b and current_input == c or d === e != f <= g >= h => i
========  ========
name      value
========  ========
task context=== x
总计＝三、等于═号〓 ゠
""",
    "number signs": """#!/bin/sh
# agent
#include <a.h>
#fff #1a2b3c; F♯ minor, C♯; 1️⃣ #️⃣ ＃话题＃ ﹟ № 5 #
#region Folder
""",
    "latex": r"\[ x = \frac{a}{b} \] and \(y\), \begin{array}[t]{c} \left[0, 1\right) \\[2pt] \end{array} $a<b$",
    "python": """from typing import Generic
@dataclass
class A(Generic[T]):
    now: dict[str, list[int]] = field(default_factory=dict)
    def at(self, current_time: float) -> None:
        if self.start < current_time: return None
        row["current_time"] = schedule[current_time]; x = data[0][current_time]
        deltas = [current_time - t for t in self.times[::-1] if t <current_time]
        print(f"{human_input!r}: {shared_memory[3:]}", rows[["a", 'b']], r"\\[a-z]\\n")
""",
    "javascript": """const [currentTime, setCurrentTime] = useState(null);
const f = async ({ humanInput }) => { if (t<currentTime && u>0) return a[humanInput] ?? {}; };
return <div className="x"><Input value={humanInput} /><Foo<Bar> /></div>; // ok: yes
""",
    "c++": r"""std::vector<std::array<int, 3>> v; auto p = std::make_unique<SharedMemory>(n);
for (int i = 0; i<current_time; ++i) { buf[i] <<= 1; std::cout << "a\n" << current_timestamp; }
[[nodiscard]] auto f = [&, this](auto x) -> Option<TaskContext> { return a<b; };
""",
    "rust": "fn main() { let v: Vec<Capabilities> = vec![]; println!(\"{:?}\", &v[..]); } impl<'a> X<'a> {}",
    "sql": "SELECT a.[name], b::text FROM \"t\" WHERE created_at <current_timestamp AND x <> 'y' AND z < current_time;",
    "shell": r"""if [[ -n "${A[0]}" && $x < 3 ]]; then cat <<EOF > "$OUT"; fi
echo "a: \[b\] \\ c" | sed -e 's/\[//g' 2>&1; [ -f x ] || exit 1
""",
    "json": '{"human": "yes", "nexus": [1, {"current_time": "2025-12-10T15:30:01Z"}], "tool_use": 0, "a\\\\b": "<b>"}',
    "yaml": "name: x\nitems: [a, b]\ntool_use: true\ncurrent_time: 10:30\nhumans:\n  - name: Ann\n",
    "logs": """[2025-12-10 15:30:01] INFO: started
[2025-12-10 15:30:02] WARN human.resources: low
[2025-12-10 15:30] nexus.server: ready
2025-12-10T15:30:03Z ERROR [main] Connection refused: localhost:6379
""",
    "html": '<!DOCTYPE html>\n<p class="a">3 &lt; 4</p><input name="human"><br/><!-- [note] --><time>10:30</time>',
    "xml": '<current_timestamp>1</current_timestamp><TaskContext.Provider value="x"/><a:b xmlns:a="urn:x"/>',
    "paths": r"C:\[temp]\new\<x> \\server\share \n \t \\ \[ \] \< http://u:p@[::1]:8080/[x]?y=z nexus-7 human-like",
    "table": "  a : b\n  Nexuses: two\n  human being: one\nHumans: many\nNexus 7: a phone\nhuman.x: y\n",
    "backslashes": "\\ \\\\ \\[ \\\\[x] \\< \\\\<y> \\: \\\nend\\",
}
