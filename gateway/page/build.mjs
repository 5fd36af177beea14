// Builds the page into dist/, or into the folder that the command line names. The same sources give the same bytes.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";

const target = process.argv[2] ?? "dist";
const PAGES = [
  { name: "index", title: "Playground", entry: "playground" },
  { name: "docs", title: "API reference", entry: "reference", styles: ["reference"] },
];
const packages = new Set();

// Returns the path under which pages load the content.
async function writeAsset(name, suffix, content) {
  const hash = createHash("sha256").update(content).digest("hex").slice(0, 12);
  const path = `assets/${name}-${hash}${suffix}`;
  await writeFile(join(target, path), content);
  return `/${path}`;
}

// Every browser that runs the page reads WOFF2; the other formats of a font would be dead weight.
const woff2Only = {
  name: "woff2-only",
  setup({ onLoad }) {
    onLoad({ filter: /katex\.min\.css$/ }, async ({ path }) => {
      const css = await readFile(path, "utf8");
      return { contents: css.replace(/,url\([^)]*\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)/g, ""), loader: "css" };
    });
  },
};

// Writes the bundles of entry files, and what they load when it is used. Returns, by entry, the files that are loaded at once.
async function bundle(entries, define = {}) {
  const { metafile } = await build({
    entryPoints: entries,
    bundle: true,
    splitting: true,
    // The same packages in another place give the same names.
    preserveSymlinks: true,
    minify: true,
    metafile: true,
    charset: "utf8",
    legalComments: "none",
    format: "esm",
    target: ["es2022"],
    jsx: "automatic",
    jsxImportSource: "preact",
    loader: { ".woff2": "file" },
    plugins: [woff2Only],
    define,
    outdir: join(target, "assets"),
    entryNames: "[name]-[hash]",
    chunkNames: "part-[hash]",
    assetNames: "[name]-[hash]",
  });
  for (const path of Object.keys(metafile.inputs)) {
    const [, name] = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path) ?? [];
    if (name) packages.add(name);
  }
  const outputs = Object.entries(metafile.outputs);
  return Object.fromEntries(entries.map((entry) => [entry, loadedAtOnce(outputs.find(([, each]) => each.entryPoint === entry)[0], metafile)]));
}

function loadedAtOnce(first, { outputs }) {
  const files = new Set([first]);
  for (const file of files) {
    for (const { path, kind } of outputs[file].imports) if (kind === "import-statement") files.add(path);
  }
  return [...files].map((file) => `/assets/${basename(file)}`);
}

// All pages have one template: their scripts write what they show.
async function writePage(name, values) {
  const template = await readFile("src/page.html", "utf8");
  await writeFile(join(target, `${name}.html`), template.replace(/{(\w+)}/g, (_, key) => values[key]));
}

async function licenses() {
  const texts = [...packages].sort().map(async (name) => {
    const folder = `node_modules/${name}`;
    const { version } = JSON.parse(await readFile(`${folder}/package.json`, "utf8"));
    const files = (await readdir(folder)).filter((each) => /^(licen[cs]e|notice)(\.|$)|bundle\.js\.LICENSE\.txt$/i.test(each));
    const contents = await Promise.all(files.map((file) => readFile(join(folder, file), "utf8")));
    return [`${name} ${version}`, ...contents].join("\n\n");
  });
  return `The page contains:\n\n${(await Promise.all(texts)).join("\n\n")}`;
}

await rm(target, { recursive: true, force: true });
await mkdir(join(target, "assets"), { recursive: true });
const icon = await writeAsset("icon", ".svg", await readFile("src/icon.svg", "utf8"));
const manifest = await writeAsset("manifest", ".webmanifest", JSON.stringify({
  name: "Glimpse",
  id: "/",
  start_url: "/",
  display: "standalone",
  background_color: "#14171c",
  theme_color: "#14171c",
  icons: [{ src: icon, type: "image/svg+xml", sizes: "any" }],
}));
const sheets = await bundle(["src/style.css", "src/math.css", "src/reference.css"]);
const sheetOf = (name) => sheets[`src/${name}.css`][0];
const scripts = await bundle(PAGES.map(({ entry }) => `src/${entry}.tsx`), { MATH_STYLE: JSON.stringify(sheetOf("math")) });
for (const { name, title, entry, styles = [] } of PAGES) {
  const [script, ...parts] = scripts[`src/${entry}.tsx`];
  const links = [...styles, "style"].map((each) => `<link rel="stylesheet" href="${sheetOf(each)}">\n`).join("");
  const preloads = parts.map((part) => `<link rel="modulepreload" href="${part}">\n`).join("");
  await writePage(name, { title, icon, manifest, links, script, preloads });
}
await writeFile(join(target, "licenses.txt"), await licenses());
