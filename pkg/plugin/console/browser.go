package console

import (
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

var redirect = template.Must(template.New("redirect").Parse(`<!doctype html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0;url={{.}}">
<title>MacRack</title><p><a href="{{.}}">Open the console</a></p>
`))

// openBrowser opens an address in the browser of the user. Other users of the machine can read the
// arguments of a process, so the browser gets a file that only the user can read, which leads to
// the address. The returned function removes it.
func openBrowser(url string) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "macrack-ui-") // only the user can read it
	if err != nil {
		return nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	path := filepath.Join(dir, "console.html")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		remove()
		return nil, err
	}
	defer file.Close()
	if err := redirect.Execute(file, url); err != nil {
		remove()
		return nil, err
	}
	cmd := browser(path)
	if err := cmd.Start(); err != nil {
		remove()
		return nil, fmt.Errorf("failed to open the browser: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return remove, nil
}

func browser(path string) *exec.Cmd {
	switch runtime.GOOS {
	case "darwin":
		return exec.Command("open", path)
	case "windows":
		return exec.Command("rundll32", "url.dll,FileProtocolHandler", path)
	}
	return exec.Command("xdg-open", path)
}
