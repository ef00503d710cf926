package cmdutil

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A lister lists the objects of a resource in the current namespace.
type lister func(ctx context.Context, c *Clients) (runtime.Object, error)

var listers = map[string]lister{
	"mnl": func(ctx context.Context, c *Clients) (runtime.Object, error) {
		return c.MacRack.RackV1alpha1().MacNodeLeases(c.Namespace).List(ctx, metav1.ListOptions{})
	},
	"mi": func(ctx context.Context, c *Clients) (runtime.Object, error) {
		return c.MacRack.InstanceV1alpha1().MacOSInstances(c.Namespace).List(ctx, metav1.ListOptions{})
	},
	"mn": func(ctx context.Context, c *Clients) (runtime.Object, error) {
		return c.MacRack.RackV1alpha1().MacNodes().List(ctx, metav1.ListOptions{})
	},
	"macosimages": func(ctx context.Context, c *Clients) (runtime.Object, error) {
		return c.MacRack.ImageV1alpha1().MacOSImages().List(ctx, metav1.ListOptions{})
	},
	"instanceclasses": func(ctx context.Context, c *Clients) (runtime.Object, error) {
		return c.MacRack.InstanceV1alpha1().InstanceClasses().List(ctx, metav1.ListOptions{})
	},
	"macnodeclasses": func(ctx context.Context, c *Clients) (runtime.Object, error) {
		return c.MacRack.RackV1alpha1().MacNodeClasses().List(ctx, metav1.ListOptions{})
	},
	"namespaces": func(ctx context.Context, c *Clients) (runtime.Object, error) {
		return c.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	},
}

// CompleteNames completes names of a resource. Names that the user may not list are missing.
func CompleteNames(env *Env, resource string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return names(cmd.Context(), env, resource), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteContexts completes the contexts of the kubeconfig.
func CompleteContexts(env *Env) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		config, err := env.Flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteObjects completes one argument of the form RESOURCE/NAME.
func CompleteObjects(env *Env, resources ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		resource, _, chosen := strings.Cut(typed, "/")
		var found []string
		if !chosen && len(resources) > 1 {
			for _, r := range resources {
				found = append(found, r+"/")
			}
			return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		if !chosen {
			resource = resources[0]
		}
		if !slices.Contains(resources, resource) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, name := range names(cmd.Context(), env, resource) {
			found = append(found, resource+"/"+name)
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func names(ctx context.Context, env *Env, resource string) []string {
	clients, err := env.Connect()
	if err != nil {
		return nil
	}
	list, err := listers[resource](ctx, clients)
	if err != nil {
		return nil
	}
	var found []string
	_ = meta.EachListItem(list, func(obj runtime.Object) error {
		m, err := meta.Accessor(obj)
		if err == nil {
			found = append(found, m.GetName())
		}
		return err
	})
	return found
}
