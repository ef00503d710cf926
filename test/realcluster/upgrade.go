package main

import (
	"context"
	"fmt"
	"strings"

	"macrack.io/macrack/test/cluster"
)

// reinstall removes the chart, and installs the earlier release over the data that it left.
func (w *world) reinstall(ctx context.Context) error {
	w.note = "the earlier release is " + w.Earlier.Name
	return w.undisturbed(ctx, func(ctx context.Context) error {
		if err := w.helm(ctx, "uninstall", "macrack", "--wait"); err != nil {
			return err
		}
		services, err := w.kubectl(ctx, "get", "apiservices", "--output=name")
		if err != nil {
			return err
		}
		if strings.Contains(services, "macrack.io") {
			return fmt.Errorf("APIServices are left: %s", services)
		}
		return w.install(ctx, w.Earlier)
	})
}

// upgrade upgrades from the earlier release to the current one.
func (w *world) upgrade(ctx context.Context) error {
	return w.rollOut(ctx, append([]string{"upgrade", "macrack", w.Current.Chart, "--reset-then-reuse-values"}, w.values(w.Current)...)...)
}

func (w *world) rollBack(ctx context.Context) error { return w.rollOut(ctx, "rollback", "macrack") }

// rollOut runs helm under load, until all pods are those of the new revision.
func (w *world) rollOut(ctx context.Context, args ...string) error {
	image := func() (string, error) {
		return w.kubectl(ctx, "get", "deployment/macrack-apiserver", "--namespace="+cluster.Namespace, "--output=jsonpath={.spec.template.spec.containers[0].image}")
	}
	before, err := image()
	if err != nil {
		return err
	}
	err = w.probe(ctx, true, func(ctx context.Context) error {
		if err := w.helm(ctx, args...); err != nil {
			return err
		}
		return w.waitForAPI(ctx)
	})
	if err != nil {
		return err
	}
	after, err := image()
	if err == nil && after == before {
		err = fmt.Errorf("the image is still %s", before)
	}
	if err == nil {
		err = w.execInVM(ctx)
	}
	return err
}

// uninstall removes the chart and the data as docs/install.md describes, except for the Macs: their
// leases end a day later.
func (w *world) uninstall(ctx context.Context) error {
	if err := w.helm(ctx, "uninstall", "macrack", "--wait"); err != nil {
		return err
	}
	if _, err := w.kubectl(ctx, "delete", "namespace", cluster.Namespace, "macrack-images", patience); err != nil {
		return err
	}
	if _, err := w.kubectl(ctx, "delete", "clusterrolebinding", "macrack-macs"); err != nil {
		return err
	}
	const flows = "flowschemas,prioritylevelconfigurations"
	out, err := w.kubectl(ctx, "get", flows, "--output=name")
	if err != nil {
		return err
	}
	for name := range strings.Lines(out) {
		if strings.Contains(name, "/macrack-") {
			if _, err := w.kubectl(ctx, "delete", strings.TrimSpace(name)); err != nil {
				return err
			}
		}
	}
	left, err := w.kubectl(ctx, "get", flows+",apiservices,namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "--output=name")
	if err != nil {
		return err
	}
	for name := range strings.Lines(left) {
		if strings.Contains(name, "macrack") {
			return fmt.Errorf("left behind: %s", strings.TrimSpace(name))
		}
	}
	return nil
}
