// Light, dark, or the system's theme. The choice is stored if the browser allows that.
const Theme = (() => {
  const KEY = "hwmatrix-theme";
  const CHOICES = ["system", "light", "dark"];
  const TOLD = {system: "Theme: system", light: "Theme: light", dark: "Theme: dark"};
  const system = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  let chosen = stored();

  // A browser may refuse storage to pages from disk, and throw: the choice then lasts as long as the page.
  function stored() {
    try {
      const found = localStorage.getItem(KEY);
      return CHOICES.includes(found) ? found : "system";
    } catch {
      return "system";
    }
  }

  function store() {
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      return;
    }
  }

  function apply() {
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    for (const listener of listeners) listener();
  }

  // The button shows the current choice; a click selects the next.
  function mount(button) {
    const tell = () => { button.textContent = TOLD[chosen]; };
    button.addEventListener("click", () => {
      chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
      store();
      tell();
      apply();
    });
    system.addEventListener("change", apply);
    tell();
  }

  apply();
  return {
    mount,
    dark: () => chosen === "dark" || (chosen === "system" && system.matches),
    onChange: listener => listeners.push(listener),
  };
})();
