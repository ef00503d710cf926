package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Load returns the configuration in a file, with defaults, or all its errors.
func Load(file string) (*RunnersConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

// Parse returns the configuration in a YAML document, with defaults. Fields that are unknown or
// written twice are errors.
func Parse(data []byte) (*RunnersConfiguration, error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	document, err := documents.Read()
	if err != nil {
		return nil, fmt.Errorf("no configuration; write one with apiVersion: %s", APIVersion)
	}
	if _, err := documents.Read(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document; put all sets into one")
	}
	document, err = yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	config := &RunnersConfiguration{}
	if err := json.UnmarshalCaseSensitivePreserveInts(document, &config.TypeMeta); err != nil {
		return nil, err
	}
	if config.APIVersion != APIVersion || config.Kind != Kind {
		return nil, fmt.Errorf("apiVersion %q and kind %q; use %q and %q", config.APIVersion, config.Kind, APIVersion, Kind)
	}
	strict, err := json.UnmarshalStrict(document, config)
	if err == nil {
		err = utilerrors.NewAggregate(strict)
	}
	if err != nil {
		return nil, err
	}
	for i := range config.Sets {
		setDefaults(&config.Sets[i])
	}
	if err := validate(config).ToAggregate(); err != nil {
		return nil, err
	}
	return config, nil
}

func setDefaults(set *Set) {
	leases, instances := &set.Leases, &set.Instances
	defaultTo(&leases.GrowAfter, metav1.Duration{Duration: time.Minute})
	defaultTo(&leases.KeepIdle, metav1.Duration{Duration: 30 * time.Minute})
	defaultTo(&leases.DecideBefore, metav1.Duration{Duration: 15 * time.Minute})
	defaultTo(&instances.MaxAge, metav1.Duration{Duration: 24 * time.Hour})
	defaultTo(&instances.Timeout, metav1.Duration{Duration: 6 * time.Hour})
	defaultTo(&instances.Warm, 1)
	if instances.PerLease == 0 {
		instances.PerLease = 2
	}
	if leases.PrefetchImages == nil && instances.ImageName != "" {
		leases.PrefetchImages = []string{instances.ImageName}
	}
	if instances.Caches == nil {
		instances.Caches = allCaches(leases.Caches)
	}
	if github := set.GitHub; github != nil {
		if github.ScaleSetName == "" {
			github.ScaleSetName = set.Name
		}
		if github.RunnerGroup == "" {
			github.RunnerGroup = "Default"
		}
		if github.RunnerPath == "" {
			github.RunnerPath = "actions-runner/run.sh"
		}
	}
}

func defaultTo[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// Drained returns the configuration of a set that was removed. Its leases end by the floor rule,
// and no job is ended within a day.
func Drained(name string) *Set {
	set := &Set{Name: name, Leases: Leases{Max: 1}, Instances: Instances{Warm: new(int)}}
	set.Instances.Timeout = &metav1.Duration{Duration: 24 * time.Hour}
	setDefaults(set)
	return set
}
