// The smallest example of a group of failures: its message, its traceback, and the command that repeats it. Built when it is opened:
// a traceback is long, and the page has it once, with its cell.
const Examples = (() => {
  const {el} = Dom;

  const block = (text, label) => el("pre", {tabindex: 0, role: "region", "aria-label": label}, text);

  function fill(details) {
    if (details.childElementCount > 1) return;
    const number = Number(details.dataset.example);
    const {cells} = Data;
    const [message, traceback, command] = [cells.message(number), cells.traceback(number), cells.command(number)];
    details.append(...[
      el("p", null, el("a", {href: Links.link({cell: cells.key(number)})}, `${cells.model(number)} on ${cells.target(number)}`), ` (${cells.label(number)})`),
      message && block(message, "Message"),
      traceback && el("details", null, el("summary", null, "Traceback"), block(traceback, "Traceback")),
      command && el("p", null, "Repeat it:"), command && block(command, "Command"),
    ].filter(Boolean));
  }

  function mount() {
    document.addEventListener("toggle", event => {
      if (event.target.matches?.("details[data-example]") && event.target.open) fill(event.target);
    }, true);
  }

  return {mount};
})();
