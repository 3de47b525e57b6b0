// Formats numbers, sizes, dates and ages.
const Text = (() => {
  const NOTHING = "–";
  const formats = new Map();

  function decimals(value, digits) {
    if (!formats.has(digits)) formats.set(digits, new Intl.NumberFormat("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits}));
    return formats.get(digits).format(value);
  }

  // With this many significant digits and no exponent: 0.0312, 3.12, 31.2, 3,120.
  function number(value, digits = 3) {
    if (value === null || value === undefined) return NOTHING;
    if (value === 0) return "0";
    return decimals(value, Math.min(12, Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))))));
  }

  const ms = value => (value === null || value === undefined ? NOTHING : `${number(value)} ms`);
  const mib = value => (value === null || value === undefined ? NOTHING : `${number(value)} MiB`);
  const whole = value => (value === null || value === undefined ? NOTHING : decimals(value, 0));
  const times = (value, about) => (value === null || value === undefined ? NOTHING : `${about ? "≈" : ""}${number(value, 2)}×`);
  const interval = (low, high) => (low === null || high === null ? null : `${number(low, 4)} to ${number(high, 4)} ms`);

  // Rounded down, so that only a whole reads 100 %.
  const percent = share => (share === null || share === undefined ? NOTHING : `${Math.floor(share * 100)} %`);

  // A small error: 2.3e-7.
  function scientific(value) {
    if (value === null || value === undefined) return NOTHING;
    if (value === 0 || Math.abs(value) >= 0.001) return number(value, 2);
    return value.toExponential(1);
  }

  const date = seconds => `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;

  function age(seconds) {
    const hours = (Date.now() / 1000 - seconds) / 3600;
    if (hours < 1) return "less than an hour ago";
    if (hours < 48) return plural(Math.floor(hours), "hour") + " ago";
    return plural(Math.floor(hours / 24), "day") + " ago";
  }

  const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
  // One word of a shell's command.
  const quoted = word => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
  const spaced = word => word.replaceAll("_", " ");

  return {NOTHING, number, ms, mib, whole, times, interval, percent, scientific, date, age, plural, quoted, spaced};
})();
