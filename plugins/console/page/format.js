// Numbers with their units, as text. Unknown values are a dash.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const NONE = "–";

/** Texts that say that there is none of something; the eye may pass over them. */
export const NOTHING = new Set([NONE, "0", "0 B"]);

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isKnown(value) ? whole.format(value) : NONE;
}

/** A rate per second: whole from 10 on. */
export function rate(value) {
  return isKnown(value) ? (value < 9.95 ? tenths : whole).format(value) : NONE;
}

/** A rate with its unit. */
export function perSecond(value, format = rate) {
  return isKnown(value) ? `${format(value)} /s` : NONE;
}

export function bytes(value) {
  if (!isKnown(value)) return NONE;
  if (value < 1024) return `${whole.format(value)} B`;
  const step = Math.min(4, Math.floor(Math.log2(value) / 10));
  const scaled = value / 1024 ** step;
  return `${(scaled < 99.5 ? tenths : whole).format(scaled)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

/** Milliseconds with three digits, seconds with tenths below a minute, then two units. */
export function seconds(value) {
  if (!isKnown(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${Number((value * 1000).toPrecision(value < 0.1 ? 2 : 3))} ms`;
  if (value < 59.95) return `${tenths.format(value)} s`;
  const units = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const at = units.findIndex(([size]) => value >= size);
  const [size, name] = units[at];
  const [lesser, lesserName] = units[at + 1];
  const rest = Math.floor((value % size) / lesser);
  return `${Math.floor(value / size)} ${name}${rest ? ` ${rest} ${lesserName}` : ""}`;
}

export function percent(share) {
  return isKnown(share) ? `${tenths.format(share * 100)} %` : NONE;
}

/** A number and the word for what is counted. */
export function many(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}

/** The time of day of so many seconds since the Unix epoch, with the day where it is not today. */
export function clock(epochSeconds) {
  if (!isKnown(epochSeconds)) return NONE;
  const when = new Date(epochSeconds * 1000);
  const time = when.toLocaleTimeString("en-GB");
  return when.toDateString() === new Date().toDateString()
    ? time
    : `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}
