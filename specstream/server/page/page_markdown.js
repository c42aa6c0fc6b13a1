/* What Markdown makes of a line. Nothing becomes HTML: the page shows the model's own characters in spans, and
   this says which of them are marks, to be hidden, and how the others look. Links and tables stay as written. */
const HIDDEN = 1, BOLD = 2, ITALIC = 4, CODE = 8;
const LOOKS = { [HIDDEN]: "mark", [BOLD]: "bold", [ITALIC]: "italic", [CODE]: "mono" };

/* A line's kind, and how many of its first characters are its mark; `fenced`: a code block is open. */
function lineKind(line, fenced) {
  if (/^ {0,3}(```|~~~)/.test(line)) return { kind: "fence", mark: line.length };
  if (fenced) return { kind: "code", mark: 0 };
  if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) return { kind: "rule", mark: line.length };
  const heading = /^ {0,3}(#{1,6}) +/.exec(line);
  if (heading) return { kind: "heading", mark: heading[0].length, level: heading[1].length };
  const bullet = /^( *)[-*+•] +/.exec(line);
  if (bullet) return { kind: "bullet", mark: bullet[0].length, depth: bullet[1].length >> 1 };
  const number = /^( *)\d{1,3}[.)] +/.exec(line);
  if (number) return { kind: "number", mark: number[1].length, depth: number[1].length >> 1 };
  const quote = /^ {0,3}> ?/.exec(line);
  if (quote) return { kind: "quote", mark: quote[0].length };
  return { kind: "text", mark: 0 };
}

/* How each character of a line looks, as bits. A mark whose partner hasn't come is one only while the line still
   grows: a reply that is being written shows bold words at once. */
function lineLooks(line, { kind, mark }, growing) {
  const looks = new Uint8Array(line.length);
  const add = (from, to, bits) => {
    for (let at = from; at < to; at++) looks[at] |= bits;
  };
  add(0, mark, HIDDEN);
  if (kind === "code" || kind === "fence" || kind === "rule") return looks;
  const open = [];
  const close = ({ run, at }, to) => {
    add(at, at + run.length, HIDDEN);
    add(at + run.length, to, [0, ITALIC, BOLD, BOLD | ITALIC][run.length]);
  };
  for (let at = mark; at < line.length; ) {
    const run = /^(?:\\(?=[*_`#\\])|`+|\*+|_+)/.exec(line.slice(at))?.[0];
    const after = at + (run?.length ?? 1);
    if (run === "\\") {
      add(at, after, HIDDEN);
      at = after + 1;
      continue;
    }
    if (run?.[0] === "`") {
      const end = line.indexOf(run, after);
      if (end > 0) {
        add(at, after, HIDDEN);
        add(after, end, CODE);
        add(end, end + run.length, HIDDEN);
        at = end + run.length;
        continue;
      }
    } else if (run && run.length <= 3) {
      const [left, right] = [line[at - 1] ?? " ", line[after] ?? " "];
      const inWord = run[0] === "_" && /\w/.test(left) && /\w/.test(right); // snake_case
      const partner = inWord || /\s/.test(left) ? -1 : open.findLastIndex((mark) => mark.run === run);
      if (partner >= 0) {
        close(open[partner], at);
        add(at, after, HIDDEN);
        open.length = partner;
      } else if (!inWord && /\S/.test(right)) {
        open.push({ run, at });
      }
    }
    at = after;
  }
  if (growing) for (const mark of open) close(mark, line.length);
  return looks;
}

/* Pieces of a text that get a span each: words with the white space before them, and marks one by one. */
const pieces = (text) => text.match(/\s+(?=[*_`\\])|[*_`\\]|\s*[^\s*_`\\]+|\s+/g) ?? [];
