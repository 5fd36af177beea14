// Builds the page into dist/, or into the folder that the command line names. The same sources give the same bytes.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

const target = process.argv[2] ?? "dist";
const LICENSED = ["preact"];
const PAGES = [
  { name: "index", title: "Playground", entry: "playground" },
  { name: "docs", title: "API reference", entry: "reference" },
];

// Returns the path under which pages load the content.
async function writeAsset(name, suffix, content) {
  const hash = createHash("sha256").update(content).digest("hex").slice(0, 12);
  const path = `assets/${name}-${hash}${suffix}`;
  await writeFile(join(target, path), content);
  return `/${path}`;
}

// Returns the texts of the bundle of an entry file, by suffix.
async function bundle(entry) {
  const { outputFiles } = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    write: false,
    charset: "utf8",
    legalComments: "none",
    format: "esm",
    target: ["es2022"],
    jsx: "automatic",
    jsxImportSource: "preact",
    outdir: "out",
  });
  return outputFiles[0].text;
}

// All pages have one template: their scripts write what they show.
async function writePage(name, values) {
  const template = await readFile("src/page.html", "utf8");
  await writeFile(join(target, `${name}.html`), template.replace(/{(\w+)}/g, (_, key) => values[key]));
}

async function licenses() {
  const texts = LICENSED.map(async (name) => {
    const { version } = JSON.parse(await readFile(`node_modules/${name}/package.json`, "utf8"));
    return `${name} ${version}\n\n${await readFile(`node_modules/${name}/LICENSE`, "utf8")}`;
  });
  return `The page contains:\n\n${(await Promise.all(texts)).join("\n\n")}`;
}

await rm(target, { recursive: true, force: true });
await mkdir(join(target, "assets"), { recursive: true });
const icon = await writeAsset("icon", ".svg", await readFile("src/icon.svg", "utf8"));
const style = await writeAsset("style", ".css", await bundle("src/style.css"));
for (const { name, title, entry } of PAGES) {
  const script = await writeAsset(entry, ".js", await bundle(`src/${entry}.tsx`));
  await writePage(name, { title, icon, style, script });
}
await writeFile(join(target, "licenses.txt"), await licenses());
