// Command prose prepares Go sources for Vale, which reads comments but no strings. It copies each
// message, a string of three words or more, to a text file in a folder, at the line of the source.
// It fails if a comment is too wide.
//
//	go run ./hack/prose FOLDER FILE.go...
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// words matches a string of three words or more.
var words = regexp.MustCompile(`\pL+[,;:]? \pL+[,;:]? \pL+`)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: prose FOLDER FILE.go...")
		os.Exit(2)
	}
	wide := 0
	for _, source := range os.Args[2:] {
		found, err := tooWide(source)
		if err == nil {
			err = extract(os.Args[1], source)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "prose:", err)
			os.Exit(1)
		}
		for _, line := range found {
			fmt.Println(line)
		}
		wide += len(found)
	}
	if wide > 0 {
		os.Exit(1)
	}
}

func extract(folder, source string) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, source, nil, 0)
	if err != nil {
		return err
	}
	var text strings.Builder
	line := 1
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		message, err := strconv.Unquote(literal.Value)
		if err != nil || !words.MatchString(message) {
			return true
		}
		for at := files.Position(literal.Pos()).Line; line < at; line++ {
			text.WriteString("\n")
		}
		message = strings.TrimRight(message, "\n")
		text.WriteString(message + " ")
		line += strings.Count(message, "\n")
		return true
	})
	if text.Len() == 0 {
		return nil
	}
	path := filepath.Join(folder, source+".txt")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text.String()+"\n"), 0o644)
}
