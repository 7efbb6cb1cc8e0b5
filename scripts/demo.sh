#!/bin/sh
# The bundled models in several orders: German-English, and 4x4 Sudoku. Run by `make demo`; needs no network.
set -e

show() {
    printf '\n\033[1m$'
    for word in "$@"; do
        case $word in
            *' '*) printf " '%s'" "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\033[0m\n'
    "$@"
}

sentence='Die Regierung hat gestern angekündigt, die Verhandlungen über den neuen Haushalt im Frühjahr wieder aufzunehmen.'
model='--model de-en --direction de-en'

for order in left-to-right outer-in:stride=2 margin learned; do
    show anyorder translate $model --order "$order" "$sentence"
done

printf '\nThe same sentence step by step in the learned order; [ ] was filled rightwards, { } leftwards.\n'
show anyorder translate $model --order learned --trace "$sentence"

printf '\nBLEU of every order on 60 sentences of newstest2013 (a minute or two on a laptop). So few cannot tell most orders apart;\n'
printf 'docs/results.md has whole test sets.\n'
show anyorder evaluate $model --length gold --max-length 30 --limit 60

printf '\n4x4 Sudoku: one model, 200 puzzles. Filling the most certain cell first solves nearly all of them, a random order about a quarter.\n'
show anyorder evaluate --model sudoku-4x4 --orders uniform,left-to-right,margin,learned:hidden
