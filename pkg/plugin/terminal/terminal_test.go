package terminal

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func env(values map[string]string) Getenv { return func(name string) string { return values[name] } }

func TestStyleOfAPipe(t *testing.T) {
	var out bytes.Buffer
	assert.Equal(t, Style{Width: 80}, StyleOf(&out, env(nil)))
	assert.Equal(t, Style{Width: 120}, StyleOf(&out, env(map[string]string{"COLUMNS": "120"})))
	assert.Equal(t, Style{Width: minWidth}, StyleOf(&out, env(map[string]string{"COLUMNS": "-1"})))
	assert.False(t, IsTerminal(&out, env(nil)))
}

func TestStyleOfATerminal(t *testing.T) {
	master, tty := openTerminal(t, 24, 100)
	defer master.Close()
	assert.Equal(t, Style{Width: 100, Height: 24, Colour: true}, StyleOf(tty, env(nil)))
	assert.False(t, StyleOf(tty, env(map[string]string{"NO_COLOR": "1"})).Colour)
	assert.False(t, StyleOf(tty, env(map[string]string{"TERM": "dumb"})).Colour)
	assert.True(t, IsTerminal(tty, env(nil)))
	assert.False(t, IsTerminal(tty, env(map[string]string{"TERM": "dumb"})))
}

func openTerminal(t *testing.T, rows, columns uint16) (master, tty *os.File) {
	t.Helper()
	master, tty, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { tty.Close() })
	require.NoError(t, pty.Setsize(tty, &pty.Winsize{Rows: rows, Cols: columns}))
	return master, tty
}

func TestText(t *testing.T) {
	assert.Equal(t, `a\x1b[31mb\u202e`, Clean("a\x1b[31mb\u202e"))
	assert.Equal(t, 5, Width("東京x"))
	assert.Equal(t, 1, Width("e\u0301"), "a combining accent")
	assert.Equal(t, "build", Cut("build", 5))
	assert.Equal(t, "buil…", Cut("builds", 5))
	assert.Equal(t, "東…", Cut("東京都", 4), "no half of a wide character")
	assert.Equal(t, "東… ", Fill("東京都", 4))
	assert.Equal(t, "", Cut("x", 0))
	assert.Equal(t, []string{"one two", "three", "fourfourfo", "ur"}, Wrap("one two three fourfourfour", 10))
}

func TestTableShrinksTheWidestColumn(t *testing.T) {
	lines := Table(Style{Width: 20}, []string{"NAME", "MESSAGE"}, [][]Cell{{Text("a"), Text(strings.Repeat("x", 40))}})
	assert.Equal(t, []string{"NAME  MESSAGE", "a     xxxxxxxxxxxxx…"}, lines)
	coloured := Table(Style{Width: 20, Colour: true}, []string{"NAME"}, [][]Cell{{{"a", Red}}})
	assert.Equal(t, "\x1b[31ma\x1b[0m", coloured[1])
}

func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := NewScreen(&out, true)
	require.NoError(t, s.Draw([]string{"one", "two"}, 0))
	require.NoError(t, s.Draw([]string{"1", "2", "3", "4"}, 3))
	require.NoError(t, s.Close())
	assert.Equal(t, enter+home+"one"+clearLine+"\r\ntwo"+clearLine+clearRest+
		home+"1"+clearLine+"\r\n2"+clearLine+"\r\n… 2 more lines"+clearLine+clearRest+
		leave+"1\n2\n3\n4\n", out.String())
}

func TestScreenOfAPipe(t *testing.T) {
	var out bytes.Buffer
	s := NewScreen(&out, false)
	for _, line := range []string{"one", "one", "two"} {
		require.NoError(t, s.Draw([]string{line}, 0))
	}
	require.NoError(t, s.Close())
	assert.Equal(t, "one\n\ntwo\n", out.String())
}
