// The page of one cell: loads ONNX Runtime Web and one model, runs it, and returns the results.
// The runner calls it over DevTools: `hwmatrix.call(name, arguments)`, which always answers and never throws.

// The runtime's log during the creation of a session says where it placed the nodes. Its printing functions are bound to the console
// when its module is loaded, so the console is wrapped before that. The timing of runs must not include logging.
const log = { lines: [], on: false };
for (const level of ["debug", "log", "info", "warn", "error"]) {
  const write = console[level].bind(console);
  console[level] = (...parts) => {
    if (log.on) log.lines.push(parts.join(" "));
    else if (level === "error") write(...parts);
  };
}

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, uint64: BigUint64Array, int32: Int32Array, uint32: Uint32Array,
  int16: Int16Array, uint16: Uint16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array, float16: Uint16Array,
  int4: Uint8Array, uint4: Uint8Array,
};

let ort = null;
let model = null;
let feeds = null;
let outputs = null;
let session = null;
const sessions = new Map();

// Of a model that generates: the tensors that the next step takes from the last one, and the last logits of each step of the prompt.
let state = {};
let logits = [];

// The devices of each WebNN graph that the runtime builds: the device type requested of a context proves nothing. If the browser refuses a
// graph, the runtime never learns it and waits forever (ONNX Runtime Web 1.30.0), so `create` learns it from here.
const graphs = [];
let refuse = () => {};
if (globalThis.MLGraphBuilder) {
  const build = MLGraphBuilder.prototype.build;
  MLGraphBuilder.prototype.build = async function (...parts) {
    try {
      const graph = await build.apply(this, parts);
      graphs.push([...(graph.devices ?? [])]);
      return graph;
    } catch (error) {
      refuse(error);
      throw error;
    }
  };
}

// A WebGPU device or a WebNN context may be lost while the runtime is not waiting for it. Then some later requests are never answered,
// or are computed on the CPU instead. So its loss makes every command fail.
let lost = null;
let fail = null;
const gone = new Promise((_, reject) => { fail = reject; });
gone.catch(() => {});

function watched(type, method, onLost) {
  if (!type) return;
  const make = type.prototype[method];
  type.prototype[method] = async function (...parts) {
    const made = await make.apply(this, parts);
    made.lost?.then(onLost);
    return made;
  };
}
watched(globalThis.GPUAdapter, "requestDevice", ({ reason, message }) => {
  if (reason === "destroyed") return; // by the runtime itself, when it released its last session
  lost = `${reason}: ${message}`;
  fail(new Error("the device of the session is gone"));
});
watched(globalThis.ML, "createContext", ({ message }) => fail(new Error(`the WebNN context is lost: ${message}`)));

function toBase64(data) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function toTensor({ dtype, shape, data }) {
  if (dtype === "string") return new ort.Tensor(dtype, data, shape);
  const bytes = fromBase64(data);
  return new ort.Tensor(dtype, new ARRAYS[dtype](bytes.buffer), shape);
}

function toTensors(arrays) {
  return Object.fromEntries(Object.entries(arrays).map(([name, value]) => [name, toTensor(value)]));
}

// The logits of each row's last position.
function atTheEnd({ data, dims }) {
  const [rows, length, size] = dims;
  return Array.from({ length: rows }, (_, row) => data.slice(((row + 1) * length - 1) * size, (row + 1) * length * size));
}

function largest(values) {
  let best = 0;
  for (let at = 1; at < values.length; at += 1) if (values[at] > values[best]) best = at;
  return best;
}

async function bytesOf(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

function described(info) {
  const { vendor, architecture, device, description, isFallbackAdapter } = info;
  return { vendor, architecture, device, description, isFallbackAdapter };
}

const commands = {
  // Describes the adapter that a WebGPU session will use; null if there is none.
  async adapter() {
    if (!navigator.gpu) return null;
    const adapter = await navigator.gpu.requestAdapter();
    if (adapter === null) return null;
    const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
    return { ...described(adapter.info), features: [...adapter.features].sort(), limits: { maxBufferSize, maxStorageBufferBindingSize } };
  },

  // Requests a WebNN context. Getting one does not prove which device is used: the devices of its graphs do.
  async context({ deviceType }) {
    if (!navigator.ml) return null;
    const context = await navigator.ml.createContext({ deviceType });
    return { deviceType, accelerated: context.accelerated ?? null };
  },

  // Loads the runtime, which binds its printing functions to the console.
  async runtime({ url, threads }) {
    log.on = true;
    try {
      ort = await import(url);
    } finally {
      log.on = false;
    }
    ort.env.logLevel = "verbose";
    ort.env.wasm.numThreads = threads;
    return ort.env.versions.web;
  },

  // Fetches a model and its external data files. Returns the number of bytes.
  async model({ file, beside }) {
    model = { graph: await bytesOf(file), beside: [] };
    for (const { path, url } of beside) model.beside.push({ path, data: await bytesOf(url) });
    return model.graph.byteLength + model.beside.reduce((sum, one) => sum + one.data.byteLength, 0);
  },

  // Creates a session of the model under a name. Returns its inputs, its outputs and the runtime's log. `kept` has the place ("gpu-buffer",
  // "ml-tensor") of each output that does not come to the page's memory.
  async create({ name, provider, kept }) {
    log.lines = [];
    log.on = true;
    graphs.length = 0;
    const refused = new Promise((_, reject) => { refuse = reject; });
    try {
      const creating = ort.InferenceSession.create(model.graph, {
        executionProviders: [provider], externalData: model.beside, logSeverityLevel: 0, logVerbosityLevel: 0,
        ...(kept ? { preferredOutputLocation: kept } : {}),
      });
      const made = await Promise.race([creating, refused]);
      sessions.set(name, made);
      const device = provider.name === "webgpu" ? await ort.env.webgpu.device : null;
      const lines = log.lines;
      log.lines = [];
      return {
        inputs: made.inputNames, outputs: made.outputNames, log: lines, graphs,
        device: device?.adapterInfo ? described(device.adapterInfo) : null,
      };
    } finally {
      log.on = false;
    }
  },

  // Keeps one session, releases all others, and creates the inputs of its runs. The previously kept session is released last: the runtime
  // destroys the device with its last session.
  async choose({ name, inputs }) {
    const before = session;
    for (const [other, made] of sessions) if (other !== name) await made.release();
    session = sessions.get(name);
    sessions.clear();
    model = null;
    feeds = toTensors(inputs);
    await before?.release();
  },

  // Replaces the inputs of the chosen session.
  async feed({ inputs }) {
    feeds = toTensors(inputs);
  },

  // Runs one inference. Returns the milliseconds until its outputs can be read on the host.
  async run() {
    const begin = performance.now();
    outputs = await session.run(feeds, { logSeverityLevel: 3 });
    for (const name of session.outputNames) await outputs[name].getData();
    return performance.now() - begin;
  },

  // Returns the outputs of the last run, in the graph's order.
  async outputs() {
    return session.outputNames.map((name) => {
      const { type, dims, data } = outputs[name];
      return { name, dtype: type, shape: dims, data: type === "string" ? [...data] : toBase64(data) };
    });
  },

  // Returns the names, types, shapes and sizes (bytes) of the last run's outputs, in the graph's order.
  async kinds() {
    return session.outputNames.map((name) => {
      const { type, dims, data } = outputs[name];
      return { name, dtype: type, shape: dims, bytes: data.byteLength ?? null };
    });
  },

  // Returns some bytes of one output of the last run: hundreds of outputs would be too much for one answer.
  async piece({ name, begin, end }) {
    const { data } = outputs[name];
    return toBase64(new Uint8Array(data.buffer, data.byteOffset, data.byteLength).subarray(begin, end));
  },

  // Begins a prompt with this state. That of the last prompt is released.
  async begin({ first }) {
    for (const tensor of Object.values(state)) tensor.dispose();
    state = toTensors(first);
    logits = [];
  },

  // Runs one step of generation. `taken` has the name in the state of each input that comes from the last step, `outputs` that of each output
  // that the next step needs. Returns the preferred token of each row, and the milliseconds until the page had it.
  async step({ name, inputs, taken, outputs }) {
    const given = toTensors(inputs);
    for (const [input, own] of Object.entries(taken)) given[input] = state[own];
    const begin = performance.now();
    const found = await sessions.get(name).run(given, Object.keys(outputs), { logSeverityLevel: 3 });
    const { logits: last, ...next } = Object.fromEntries(Object.entries(outputs).map(([output, own]) => [own, found[output]]));
    const ends = atTheEnd(last);
    const tokens = ends.map(largest);
    const ms = performance.now() - begin;
    for (const own of Object.keys(next)) state[own]?.dispose();
    state = { ...state, ...next };
    logits.push(ends);
    return { ms, tokens };
  },

  // Returns the last logits of a step of the current prompt, row by row.
  async logits({ step }) {
    return logits[step].map(toBase64);
  },

  // Returns the place and the size (bytes) of each tensor of the state. "cpu" is the page's own memory.
  async state() {
    return Object.entries(state).map(([name, { type, size, location }]) => {
      return { name, location, bytes: size * ARRAYS[type].BYTES_PER_ELEMENT };
    });
  },

  // Executes a small graph once. Returns the result of `create`, and the outputs. The session stays until the next one is created.
  async execute({ graph, provider, inputs }) {
    model = { graph: fromBase64(graph), beside: [] };
    const made = await commands.create({ name: "graph", provider });
    await commands.choose({ name: "graph", inputs });
    await commands.run();
    return { ...made, results: await commands.outputs() };
  },
};

globalThis.hwmatrix = {
  async call(name, argument) {
    try {
      return { value: await Promise.race([commands[name](argument ?? {}), gone]) };
    } catch (error) {
      // The loss of a device may be reported a little after the error that it caused.
      await new Promise((later) => setTimeout(later, 50));
      const message = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
      return { error: message, stack: error?.stack ?? null, lost, log: log.lines.slice(-200) };
    }
  },
};
