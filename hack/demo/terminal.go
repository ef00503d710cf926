package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// terminal types kubectl commands, shows their output, and counts the successful steps.
type terminal struct {
	out        io.Writer
	root       string
	kubeconfig string

	steps, asExpected int
}

// answer is the output of a command.
type answer struct {
	stdout, stderr string
	failed         bool
}

// say explains the next step.
func (t *terminal) say(format string, args ...any) {
	fmt.Fprintf(t.out, "\n# "+format+"\n", args...)
}

// check counts a step and shows whether it succeeded.
func (t *terminal) check(what string, ok bool) bool {
	t.steps++
	mark := "✗"
	if ok {
		t.asExpected++
		mark = "✓"
	}
	fmt.Fprintf(t.out, "%s %s\n", mark, what)
	return ok
}

// kubectl runs kubectl with a context of the dev cluster's kubeconfig, named like the user. It
// shows the command and its output.
func (t *terminal) kubectl(ctx context.Context, user string, args ...string) answer {
	return t.kubectlInput(ctx, "", user, args...)
}

// kubectlInput is like kubectl, with a document at standard input.
func (t *terminal) kubectlInput(ctx context.Context, document, user string, args ...string) answer {
	args = append([]string{"--context", user}, args...)
	fmt.Fprintf(t.out, "\n$ kubectl %s", typed(args))
	if document != "" {
		fmt.Fprintf(t.out, " <<'EOF'\n%s\nEOF", strings.TrimSpace(document))
	}
	fmt.Fprintln(t.out)
	a := t.quietly(ctx, document, args...)
	fmt.Fprint(t.out, indent(a.stdout), indent(a.stderr))
	return a
}

// quietly runs kubectl and shows nothing.
func (t *terminal) quietly(ctx context.Context, document string, args ...string) answer {
	cmd := exec.CommandContext(ctx, filepath.Join(t.root, ".dev", "bin", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+t.kubeconfig, "KUBERC=off", "KUBECACHEDIR="+filepath.Join(t.root, ".dev", "kubectl-cache"))
	cmd.Stdin = strings.NewReader(document)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	a := answer{stdout: stdout.String(), stderr: stderr.String(), failed: err != nil}
	if err != nil && a.stderr == "" {
		a.stderr = err.Error() + "\n"
	}
	return a
}

// value reads one value with a JSONPath, quietly. It returns an empty string for a missing value.
func (t *terminal) value(ctx context.Context, user, path string, args ...string) string {
	a := t.quietly(ctx, "", append([]string{"--context", user, "get", "-o", "jsonpath=" + path}, args...)...)
	return strings.TrimSpace(a.stdout)
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:,=@%+-]+$`)

// typed formats arguments as in a shell.
func typed(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = arg
		if !plain.MatchString(arg) {
			words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

// row returns the cells of the table row that begins with name, by column.
func (a answer) row(name string) map[string]string {
	lines := strings.Split(strings.TrimSpace(a.stdout), "\n")
	header := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		if len(cells) >= len(header) && cells[0] == name { // the message, in the last cell, has spaces
			row := map[string]string{}
			for i, column := range header {
				row[column] = cells[i]
			}
			return row
		}
	}
	return nil
}
