package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"

	"macrack.io/macrack/pkg/vm/contract"
)

// tears are kinds of damage to a file.
var tears = []struct {
	name string
	tear func(path string, data []byte) error
}{
	{"half", func(path string, data []byte) error { return os.WriteFile(path, data[:len(data)/2], 0o600) }},
	{"empty", func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) }},
	{"zeros", func(path string, data []byte) error { return os.WriteFile(path, make([]byte, len(data)), 0o600) }},
	{"another's", func(path string, _ []byte) error { return os.WriteFile(path, []byte(`{"instanceUID":"x"}`), 0o600) }},
	{"one byte", func(path string, _ []byte) error { return os.WriteFile(path, []byte("{"), 0o600) }},
	{"null", func(path string, _ []byte) error { return os.WriteFile(path, []byte("null"), 0o600) }},
	{"a directory", func(path string, _ []byte) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) }},
	{"a symlink to nothing", func(path string, _ []byte) error { return os.Symlink("/nonexistent/file", path) }},
	{"4 KiB of noise", func(path string, _ []byte) error {
		noise := make([]byte, 4096)
		for i := range noise {
			noise[i] = byte(i*7 + i>>3)
		}
		return os.WriteFile(path, noise, 0o600)
	}},
	{"gone", func(string, []byte) error { return nil }},
}

// tornFiles damages files while the agent is stopped, with one running and one ended virtual
// machine.
func tornFiles(ctx context.Context, r *run) error {
	files := []struct {
		name string
		path func(running, ended contract.SlotDir) string
		// mayEnd means that the running virtual machine may be lost with the file.
		mayEnd bool
	}{
		{"spec.json of a running VM", func(running, _ contract.SlotDir) string { return running.SpecPath() }, false},
		{"started.json of a running VM", func(running, _ contract.SlotDir) string { return running.StartedPath() }, false},
		{"spec.json of an ended VM", func(_, ended contract.SlotDir) string { return ended.SpecPath() }, false},
		{"result.json of an ended VM", func(_, ended contract.SlotDir) string { return ended.ResultPath() }, false},
		{"started.json of an ended VM", func(_, ended contract.SlotDir) string { return ended.StartedPath() }, false},
		{"lock of an ended VM", func(_, ended contract.SlotDir) string { return ended.LockPath() }, false},
		{"vm.sock of an ended VM", func(_, ended contract.SlotDir) string { return ended.SocketPath() }, false},
		{"state.json", func(running, _ contract.SlotDir) string {
			return filepath.Join(filepath.Dir(filepath.Dir(string(running))), "state.json")
		}, false},
	}
	for n, file := range files {
		for m, tear := range tears {
			if r.Torn != 0 && (m != n || n%3 != 0) {
				continue
			}
			r.fault(file.name+" is "+tear.name, func() error {
				before, err := r.two(ctx)
				if err != nil {
					return err
				}
				vms := r.mac.vms(ctx)
				running, ended := vms[0], vms[1]
				r.mac.agent.Kill()
				if _, err := contract.NewClient(r.mac.slot(ended.slot)).Kill(ctx); err != nil {
					return err
				}
				if err := wait(ctx, func() error {
					lock, err := r.mac.slot(ended.slot).TryLock()
					if err == nil {
						lock.Unlock()
					}
					return err
				}); err != nil {
					return err
				}
				path := file.path(r.mac.slot(running.slot), r.mac.slot(ended.slot))
				data, _ := os.ReadFile(path)
				if err := errors.Join(os.RemoveAll(path), tear.tear(path, data), r.mac.agent.Start()); err != nil {
					return err
				}
				i, err := r.ends(ctx, ended.Name)
				if err != nil {
					return err
				}
				if i.Status.Phase != instancev1alpha1.MacOSInstanceFailed {
					return fmt.Errorf("%s is %s: %s", i.Name, i.Status.Phase, i.Status.Message)
				}
				delete(before, ended.Name)
				return errors.Join(r.settle(ctx), r.same(ctx, before))
			})
			if err := r.clear(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
