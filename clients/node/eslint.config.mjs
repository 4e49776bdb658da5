import js from '@eslint/js'
import tseslint from 'typescript-eslint'

const globals = ['process', 'console', 'performance', 'AbortController', 'AbortSignal', 'URL', 'Buffer', 'setTimeout']

export default tseslint.config(
  { ignores: ['dist/'] },
  js.configs.recommended,
  { languageOptions: { globals: Object.fromEntries(globals.map((name) => [name, 'readonly'])) } },
  {
    files: ['src/**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { project: './tsconfig.json' } },
    rules: {
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      // Replies and options of the libraries are unknown, and are checked as text.
      '@typescript-eslint/no-base-to-string': 'off',
    },
  },
)
