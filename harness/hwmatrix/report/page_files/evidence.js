// The evidence of one cell, in a dialog beside the matrix: its verdict, how far it got, what was measured, how to repeat it.
const Evidence = (() => {
  const {el} = Dom;
  let dialog, opened = null;

  function mount(element) {
    dialog = element;
    dialog.addEventListener("close", () => {
      const closed = opened;
      opened = null;
      if (closed === null) return;
      Links.go({cell: ""});
      if (Links.state().view === "matrix") Grid.focusCell(closed);
    });
    dialog.addEventListener("pointerdown", event => { if (event.target === dialog) dialog.close(); });
  }

  // Show the cell that the address names. An empty key names none; a key may also be of another run.
  function update(key) {
    const number = key === "" ? null : Data.find(key);
    if (number === opened && number !== null) return;
    if (number === null) {
      opened = null;
      if (dialog.open) dialog.close();
      if (key !== "") Dom.get("told").textContent = "The cell in the link is not in this run.";
      return;
    }
    opened = number;
    draw(Data.cell(number), number);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  }

  function draw(cell, number) {
    const close = el("button", {type: "button", "aria-label": "Close"}, "✕");
    close.addEventListener("click", () => dialog.close());
    const settings = [cell.size, cell.dtype, `batch ${cell.batch}`, `${cell.sequence_length} ${cell.new_tokens ? `+ ${cell.new_tokens} ` : ""}tokens`, cell.threads ? Text.plural(cell.threads, "thread") : "threads of the runtime's choice", cell.isolation];
    dialog.replaceChildren(
      el("div", {class: "top"}, el("div", null, el("h2", {id: "evidence-title"}, `${cell.model} on ${cell.target}`), el("p", null, settings.join(", "))), close),
      el("div", {class: "inner"}, verdict(cell, number), error(cell), stages(cell), placement(cell), task(cell), generation(cell), latency(cell), memory(cell), outputs(cell), origin(cell)));
  }

  const part = (title, ...content) => [el("h3", null, title), ...content];

  // Names and values; those without a value are left out.
  const facts = pairs => el("dl", {class: "facts"}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [el("dt", null, name), el("dd", null, value)]));

  function verdict(cell, number) {
    const state = Data.state(number);
    const [word, ...details] = cell.label.split(" · ");
    const how = {software: "Software execution: its times say nothing about hardware.", emulated: "Emulated: it shows what works, not how fast."}[cell.execution];
    return [
      el("div", {class: `verdict ${state}`}, Marks.shape(state), el("div", null, el("strong", null, [word, ...details].join(" · ")), Data.meanings[word] ?? Data.words[cell.status])),
      how && el("p", {class: "warned"}, how),
      cell.doubts && cell.doubts.split("\n").map(doubt => el("p", {class: "warned"}, `Low confidence: ${doubt}.`)),
    ];
  }

  function error(cell) {
    if (cell.error_type === null) return null;
    const advice = cell.advice ? cell.advice.split("\n") : [];
    return part("What went wrong",
      el("p", null, el("span", {class: `severity ${cell.severity}`}, cell.severity), " ", el("code", null, cell.error_type)),
      cell.message && el("p", {class: "message", tabindex: 0, role: "region", "aria-label": "Message"}, cell.message),
      facts([["Lacks", cell.needs], ["Error begins", cell.begins]]),
      cell.traceback && el("details", null, el("summary", null, "Traceback"), el("pre", {tabindex: 0, role: "region", "aria-label": "Traceback"}, cell.traceback)),
      cell.adapted && [el("h4", null, "Tried again with"), el("ul", null, cell.adapted.split("\n").map(each => el("li", null, each)))],
      advice.length > 0 && [el("h4", null, "What to do"), el("ul", null, advice.map(each => el("li", null, each)))],
      near(cell));
  }

  function near(cell) {
    if (!cell.near) return null;
    const found = cell.near.map(([number, differs]) => el("li", null, el("a", {href: Links.link({cell: Data.cells.key(number)})}, differs), ` (${Data.cells.label(number)})`));
    return [el("h4", null, "The nearest that works"), found.length > 0 ? el("ul", null, found) : el("p", {class: "nothing"}, "No similar working configuration in this run.")];
  }

  function stages(cell) {
    if (cell.stage === null) return null;
    const silent = cell.execution === "emulated" && cell.steps;
    return part("How far it got", Funnel.draw(cell), facts([["Prepared by", cell.method], ["Preparation", cell.preparation], ["Operators replaced", cell.replaced], ["Compiled", cell.compiled]]),
      cell.breaks && [el("h4", null, "Graph breaks"), el("ul", null, cell.breaks.split("\n").map(each => el("li", null, each)))],
      silent && el("p", {class: "hint"}, "The emulator's times say nothing about speed, and are not shown."));
  }

  // Of a target that is compared with its own rounded weights in float32, "loss" is the error of these, and "excess" its distance from them.
  function errors(cell) {
    if (cell.kernel_error === null) return [
      ["Rounded weights in float32", cell.kernel_detail && `not compared: ${cell.kernel_detail}`],
      ["Noise floor", cell.loss === null ? null : `${Text.scientific(cell.loss)} (what ${cell.precision || cell.dtype} alone costs this model, on the CPU)`],
      ["Excess", cell.excess === null ? null : `${Text.times(cell.excess)} the noise floor of its output`],
    ];
    const limit = cell.allowed_error === null || cell.error_type === "precision_loss" ? "" : ` (${Text.scientific(cell.allowed_error)} is allowed)`;
    return [
      ["Loss of its rounded weights", cell.loss === null ? null : `${Text.scientific(cell.loss)} (these in float32, against the reference)`],
      ["Distance from these", `${Text.scientific(cell.kernel_error)}${limit}`],
    ];
  }

  function placement(cell) {
    if (cell.on_target === null && cell.placement === null && cell.relative_error === null && cell.max_error === null) return null;
    return part("Placement and parity", facts([
      ["On the target", cell.on_target === null ? null : Text.percent(cell.on_target)],
      ["How that is known", cell.placement],
      ["Computed in", cell.precision === null ? null : `${cell.precision}, as the runtime reports`],
      ["Relative error", cell.relative_error === null ? null : `${Text.scientific(cell.relative_error)} (L2, against the reference)`],
      ...errors(cell),
      ["Largest error", cell.max_error === null ? null : Text.scientific(cell.max_error)],
      ["Cosine", cell.cosine === null ? null : Text.number(cell.cosine, 6)],
    ]));
  }

  function task(cell) {
    if (cell.quality === null) return cell.task_detail && part("Task", el("p", {class: "nothing"}, `None: ${cell.task_detail}`));
    return part("Task", facts([
      [cell.task, `${Text.percent(cell.quality)} of ${Text.whole(cell.held_out)} held-out inputs (95 % interval ${Text.percent(cell.quality_low)} to ${Text.percent(cell.quality_high)})`],
      ["Reference", cell.quality_reference === null ? null : Text.percent(cell.quality_reference)],
      ["Same answers as the reference", Text.percent(cell.agreement)],
      ["Relative L2 error on them", cell.held_out_error === null ? null : Text.scientific(cell.held_out_error)],
      ["Distance from its rounded weights on them", cell.held_out_kernel_error === null ? null : Text.scientific(cell.held_out_kernel_error)],
      ["Inputs and answers", cell.task_detail],
    ]));
  }

  function generation(cell) {
    if (!cell.new_tokens || (cell.ttft_ms === null && cell.fails_at === null)) return null;
    const rate = (value) => (value === null ? null : `${Text.number(value)} per second`);
    return part("Generation", facts([
      ["Fails", cell.fails_at],
      ["Tokens of the prompt", cell.prompt_tokens],
      ["Time to first token", Text.ms(cell.ttft_ms)],
      ["95 % interval", cell.ttft_interval && Text.interval(...cell.ttft_interval)],
      ["Time per output token", Text.ms(cell.tpot_ms)],
      ["95 % interval ", cell.tpot_interval && Text.interval(...cell.tpot_interval)],
      ["Between tokens, by position", cell.itl_ms && cell.itl_ms.map((value) => Text.number(value)).join(", ") + " ms"],
      ["Change by position", cell.by_position],
      ["Tokens in prefill", rate(cell.prefill_tokens_s)],
      ["Tokens in decoding", rate(cell.decode_tokens_s)],
      ["After other prompts", cell.by_length && cell.by_length.map(([tokens, first, each]) => `${Text.plural(tokens, "token")}: ${Text.ms(first)}${each === null ? "" : `, then ${Text.ms(each)} per token`}`).join("; ")],
      ["Cache", cell.cache_mb === null ? null : Text.mib(cell.cache_mb)],
      ["Cache per token", cell.cache_kb_per_token === null ? null : `${Text.number(cell.cache_kb_per_token)} KiB`],
      ["Memory grows", cell.growth_kb === null ? null : `by ${Text.number(cell.growth_kb)} KiB with every token`],
      ["Error of the cache", cell.cache_error === null ? null : `${Text.scientific(cell.cache_error)} (L2, against its own logits without one)`],
    ]));
  }

  function latency(cell) {
    if (cell.p50_ms === null) return null;
    const speed = cell.speed_up === null || cell.size !== "full" ? null : `${Text.times(cell.speed_up, cell.speed_contended)}${cell.speed_differs ? "" : " (the intervals overlap: the two cannot be told apart)"}`;
    return part(cell.new_tokens ? `Latency of ${Text.plural(cell.new_tokens, "token")}` : "Latency of one inference",
      cell.quantiles && Distribution.draw(cell.quantiles),
      facts([
        ["p50", Text.ms(cell.p50_ms)],
        ["95 % interval", Text.interval(cell.ci_low_ms, cell.ci_high_ms) ?? "too few samples"],
        ["p90, p99", `${Text.ms(cell.p90_ms)}, ${Text.ms(cell.p99_ms)}`],
        ["Mean", Text.ms(cell.mean_ms)],
        ["Inputs", `${Text.number(cell.batch / cell.p50_ms * 1000)} per second`],
        ["Shortest, longest", `${Text.ms(cell.min_ms)}, ${Text.ms(cell.max_ms)}`],
        ["Samples", `${Text.whole(cell.samples)}${cell.converged === false ? ", not converged" : ""}`],
        ["Contended", cell.contended === null ? "not known" : cell.contended ? "yes" : "no"],
        ["Speed over cpu in float32", speed], ["Over its own float32", cell.own_speed_up === null ? null : Text.times(cell.own_speed_up, false)],
        ["First inference", cell.first_ms === null ? null : Text.ms(cell.first_ms)],
      ]));
  }

  function memory(cell) {
    if (cell.peak_mb === null && cell.delta_mb === null && cell.device_peak_mb === null && cell.memory_of === null && cell.load_ms === null) return null;
    const optional = (value, told) => (value === null ? null : told(value));
    return part("Memory and loading", facts([
      ["Added by the cell", optional(cell.delta_mb, Text.mib)],
      ["Peak", optional(cell.peak_mb, Text.mib)],
      ["Peak of inference alone", optional(cell.run_peak_mb, Text.mib)],
      ["Whose memory", cell.memory_of],
      ["Peak on the device", optional(cell.device_peak_mb, Text.mib)],
      ["Parameters", optional(cell.parameters, Text.whole)],
      ["Load", optional(cell.load_ms, Text.ms)],
      ["Prepare", optional(cell.prepare_ms, Text.ms)],
    ]));
  }

  const outputs = cell => cell.outputs && part("Outputs", el("pre", {tabindex: 0, role: "region", "aria-label": "Outputs"}, cell.outputs));

  function origin(cell) {
    const when = cell.started_s === null ? null : `${Text.date(cell.started_s)}, ${Text.age(cell.started_s)}`;
    return part("Evidence",
      facts([
        ["Run", cell.run ?? Data.run], ["Executed", when ?? "not executed"], ["Isolation", cell.executed ? cell.isolation : null], ["Stands for", cell.hub], ["Given", cell.inputs && `${cell.inputs}${cell.path === "text path only" ? ": only the text path of a model that takes more" : ""}`],
        ["Family", Text.spaced(cell.family)], ["Architecture", cell.architecture], ["Backend", cell.backend], ["Execution", cell.execution],
        ["Image", cell.image_digest && el("code", null, cell.image_digest)], ["Versions", cell.versions], ["Machine", cell.host && el("code", null, cell.host)],
        ["Cell", el("code", null, cell.key)],
      ]),
      cell.command && [el("h4", null, "Repeat it"), el("pre", {class: "command", tabindex: 0, role: "region", "aria-label": "Command"}, cell.command), copying(cell.command)],
      cell.script && [el("p", null, "Write a script that reproduces it without hwmatrix into the folder of this page:"),
        el("pre", {tabindex: 0, role: "region", "aria-label": "Command of the script"}, `hwmatrix generate --reproduce ${Text.quoted(cell.model)} ${Text.quoted(cell.target)} --dtype ${cell.dtype} --size ${cell.size}${cell.new_tokens ? " --generation" : ""} --database matrix.duckdb`)],
      el("p", null, el("a", {href: Links.link({cell: cell.key})}, "Link to this cell")));
  }

  // If the browser refuses the clipboard (some do for pages from disk), the command is selected instead.
  function copying(command) {
    const told = el("span", {role: "status"});
    const button = el("button", {type: "button"}, "Copy the command");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command);
        told.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(dialog.querySelector(".command"));
        told.textContent = "selected: copy it with the keyboard";
      }
    });
    return el("p", {class: "copied"}, button, told);
  }

  return {mount, update};
})();
