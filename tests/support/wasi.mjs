// Runs a program for WASI in Node: node wasi.mjs PROGRAM ARGUMENTS. It may read all files.
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const args = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args, preopens: { "/": "/" } });
const module = new WebAssembly.Module(readFileSync(args[0]));
process.exitCode = wasi.start(new WebAssembly.Instance(module, wasi.getImportObject()));
