// `node attention.mjs FOLDER`: attention for one case of attendax, forward only, without packages.
import { readFileSync, writeFileSync } from "node:fs";

const folder = process.argv[2];
const told = JSON.parse(readFileSync(`${folder}/case.json`, "utf8"));

function refuse(why) {
  writeFileSync(`${folder}/error.json`, JSON.stringify({ kind: "not offered", said: [why] }));
  process.exit(0);
}

function read(name, Kind) {
  const bytes = readFileSync(`${folder}/${name}.npy`);
  const start = 10 + bytes.readUInt16LE(8);
  return new Kind(bytes.buffer.slice(bytes.byteOffset + start, bytes.byteOffset + bytes.length));
}

function write(name, numbers, shape) {
  const header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${shape.join(", ")}, ), }`.padEnd(117) + "\n";
  const head = Buffer.from("\x93NUMPY\x01\x00\x76\x00", "latin1"); // 0x76 = 118 bytes of header
  writeFileSync(`${folder}/${name}.npy`, Buffer.concat([head, Buffer.from(header), Buffer.from(numbers.buffer)]));
}

if (told.schema !== 1) process.exit(1);
if (told.direction !== "forward") refuse("no gradients");
if (told.dtype !== "float32") refuse(`no ${told.dtype}`);
for (const word of told.asks_for) if (word !== "lse") refuse(`no ${word}`);

const { B, N, G, T, S, D, V } = told.sizes;
const [query, key, value] = ["query", "key", "value"].map((name) => read(name, Float32Array));
const allowed = told.allowed && read("allowed", Uint8Array);
const [b1, n1] = told.allowed ? told.allowed.shape : [1, 1];
const out = new Float32Array(B * N * T * V), lse = new Float32Array(B * N * T);
for (let b = 0; b < B; b++) for (let n = 0; n < N; n++) for (let t = 0; t < T; t++) {
  const row = (b * N + n) * T + t, shared = b * G + Math.floor(n / (N / G));
  const mask = ((b % b1) * n1 + (n % n1)) * T * S + t * S;
  const keys = [...Array(S).keys()].filter((s) => !allowed || allowed[mask + s]);
  const scores = keys.map((s) => {
    let sum = 0;
    for (let d = 0; d < D; d++) sum += query[row * D + d] * key[(shared * S + s) * D + d];
    return told.scale * sum;
  });
  const most = scores.reduce((x, y) => Math.max(x, y), -Infinity);
  const weights = scores.map((score) => Math.exp(score - most)), total = weights.reduce((x, y) => x + y, 0);
  for (let v = 0; v < V; v++) {
    keys.forEach((s, k) => (out[row * V + v] += (weights[k] / total) * value[(shared * S + s) * V + v]));
  }
  lse[row] = most + Math.log(total);
}
write("out", out, [B, N, T, V]);
if (told.results.lse) write("lse", lse, [B, N, T]);
