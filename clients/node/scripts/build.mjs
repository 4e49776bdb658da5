// Compiles src/ twice: ES modules into dist/esm, CommonJS into dist/cjs, each with its types.
import { execFileSync } from 'node:child_process'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc')
rmSync('dist', { recursive: true, force: true })
for (const [kind, type] of [
  ['esm', 'module'],
  ['cjs', 'commonjs'],
]) {
  mkdirSync(`dist/${kind}`, { recursive: true })
  // Node and TypeScript read the kind of a module from the nearest package.json.
  writeFileSync(`dist/${kind}/package.json`, JSON.stringify({ type }) + '\n')
  execFileSync(process.execPath, [tsc, '-p', `tsconfig.${kind}.json`], { stdio: 'inherit' })
}
