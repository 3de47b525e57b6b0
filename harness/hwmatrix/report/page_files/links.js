// The address holds the state: #view=matrix&status=mismatch&sort=-openvino.container&cell=... So links and the back button restore it.
const Links = (() => {
  const SETS = ["family", "architecture", "target", "status", "precision", "execution", "size", "inputs", "path"];
  const WORDS = {view: "overview", q: "", sort: "", show: "verdict", compare: "", cell: ""};
  const WAIT_MS = 300;
  const listeners = [];
  let state = read();
  let waiting = 0;

  function read() {
    const found = new URLSearchParams(location.hash.slice(1));
    const words = Object.fromEntries(Object.entries(WORDS).map(([name, usual]) => [name, found.get(name) ?? usual]));
    return {...words, ...Object.fromEntries(SETS.map(name => [name, found.getAll(name)]))};
  }

  // The link to a state, without default values.
  function link(changes) {
    const wanted = {...state, ...changes};
    const told = new URLSearchParams();
    for (const [name, usual] of Object.entries(WORDS)) if (name === "view" || wanted[name] !== usual) told.append(name, wanted[name]);
    for (const name of SETS) for (const value of wanted[name]) told.append(name, value);
    return `#${told}`;
  }

  function tell() {
    for (const listener of listeners) listener(state);
  }

  // Change what is shown. `quiet` adds no history entry: for changes with every key that is typed.
  function go(changes, {quiet = false} = {}) {
    const target = link(changes);
    state = {...state, ...changes};
    clearTimeout(waiting);
    if (quiet) waiting = setTimeout(() => history.replaceState(null, "", target), WAIT_MS);
    else if (target !== location.hash) history.pushState(null, "", target);
    tell();
  }

  // Links on the page, the address line, back and forward.
  addEventListener("hashchange", () => {
    clearTimeout(waiting);
    state = read();
    tell();
  });

  return {SETS, link, go, state: () => state, onChange: listener => listeners.push(listener)};
})();
